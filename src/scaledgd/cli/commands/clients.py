"""The cluster, or the processes on this machine, that ``complete`` uses for many files."""

from __future__ import annotations

import contextlib
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..failures import Failure, cause
from .options import TableOptions

LOOPBACK = "127.0.0.1:0"
"""A free port that other machines do not reach."""


def check_cluster(options: TableOptions) -> None:
    """Fail if the options of a cluster contradict each other, or their files are not there."""
    if options.cluster is not None and options.workers is not None:
        raise Failure("--cluster and --workers contradict each other; give one of them")
    given = _tls_files(options)
    for option, path in given.items():
        if options.cluster is None:
            raise Failure(f"{option} is for --cluster; leave it out")
        if not path.is_file():
            raise Failure(f"{option}: there is no file {path}")
    if given and not _encrypted(options):
        raise Failure(
            f"{next(iter(given))} needs an address that begins with tls://, such as "
            f"tls://host:8786, not {options.cluster}"
        )


def _encrypted(options: TableOptions) -> bool:
    return str(options.cluster).startswith("tls://")


def _tls_files(options: TableOptions) -> dict[str, Path]:
    """The options of TLS that are given."""
    all_of_them = {
        "--tls-ca": options.tls_ca,
        "--tls-cert": options.tls_cert,
        "--tls-key": options.tls_key,
    }
    return {option: path for option, path in all_of_them.items() if path is not None}


@contextlib.contextmanager
def opened_client(options: TableOptions) -> Iterator[Any]:
    """Give a client of the cluster at an address, or of processes that are started here."""
    from distributed import Client, LocalCluster

    with contextlib.ExitStack() as stack:
        if options.cluster is not None:
            security = _security(options)
            try:
                client = Client(options.cluster, timeout="10s", security=security)
            except (OSError, ValueError, TimeoutError, RuntimeError) as error:
                raise Failure(
                    f"no scheduler answers at {options.cluster}: {cause(error, 200)}"
                ) from None
            yield stack.enter_context(client)
        else:
            cluster = LocalCluster(
                n_workers=options.workers,
                threads_per_worker=1,
                processes=True,
                dashboard_address=LOOPBACK,
            )
            yield stack.enter_context(Client(stack.enter_context(cluster)))


def _security(options: TableOptions) -> Any:
    """Return the certificates that are given, and those of the configuration of Dask."""
    from distributed.security import Security

    if not _encrypted(options):
        return None
    given = _tls_files(options)
    names = {
        "--tls-ca": "tls_ca_file",
        "--tls-cert": "tls_client_cert",
        "--tls-key": "tls_client_key",
    }
    security = Security(
        require_encryption=True, **{names[option]: str(path) for option, path in given.items()}
    )
    for option in ("--tls-ca", "--tls-cert"):
        if getattr(security, names[option]) is None:
            raise Failure(f"give {option} FILE: the configuration of Dask does not name one")
    try:
        security.get_connection_args("client")
    except (ssl.SSLError, OSError) as error:
        raise Failure(
            f"the certificates of --tls-ca, --tls-cert and --tls-key cannot be used "
            f"({cause(error)}); give files in PEM format, and the key of that certificate"
        ) from None
    return security
