"""Whole error trajectories of fixed instances, on which independent implementations agreed."""

import numpy as np
import pytest
from conftest import error_to, reference

import scaledgd as sg
from scaledgd.linalg import unfold

SMOOTH = (1e-9, 1e-13)
NONSMOOTH = (1e-7, 1e-12)


def truth_of(d):
    return sg.LowRank(d["L_star_k2"], d["R_star_k2"])


def measurements(d, n1, n2):
    bits = np.unpackbits(d["bits_packed"], axis=1)[:, : n1 * n2]
    return (2.0 * bits - 1).reshape(-1, n1, n2)


def entries(d, X):
    n1, n2 = (int(n) for n in d["mask_shape"])
    mask = np.unpackbits(d["Omega_packed"])[: n1 * n2].reshape(n1, n2)
    index = np.nonzero(mask)
    return sg.Observed(sg.Entries(index, (n1, n2)), X[index], scale=1 / float(d["p"]))


def ms():
    d = reference("ms")
    n1, n2 = int(d["n1"]), int(d["n2"])
    A = measurements(d, n1, n2) / np.sqrt(float(d["m"]))
    problem = sg.Observed(sg.Sensing(A), d["y_k2"])
    error, start = error_to(truth_of(d)), sg.spectral(3)
    yield "ms-ScaledGD", problem, start, sg.ScaledGD(0.5), error, d["err_ScaledGD_k2"], SMOOTH
    gd = sg.GradientDescent(0.5 / d["sigma_star_k2"][0])
    yield "ms-GD", problem, start, gd, error, d["err_GD_k2"], SMOOTH


def mc():
    d = reference("mc")
    truth = truth_of(d)
    problem, error = entries(d, truth.full()), error_to(truth)
    start, project = sg.spectral(5), sg.incoherence(d["B_k2"])
    yield "mc-ScaledGD", problem, start, sg.ScaledGD(0.5), error, d["err_ScaledGD_k2"], SMOOTH
    gd = sg.GradientDescent(0.5 / d["sigma_star_k2"][0])
    yield "mc-GD", problem, start, gd, error, d["err_GD_k2"], SMOOTH
    pgd, start = sg.ScaledGD(0.5, project=project), sg.spectral(5, project)
    yield "mc-ScaledPGD", problem, start, pgd, error, d["err_ScaledPGD_k2"], SMOOTH


def rpca():
    d = reference("rpca")
    truth = truth_of(d)
    Y = truth.full()
    Y[d["S_rows_k2"], d["S_cols_k2"]] += d["S_vals_k2"]
    problem = sg.Observed(sg.Full(Y.shape), Y, sg.TopTrim(float(d["alpha"])))
    error, start = error_to(truth), sg.spectral(5)
    yield "rpca-ScaledGD", problem, start, sg.ScaledGD(0.5), error, d["err_ScaledGD_k2"], SMOOTH
    gd = sg.GradientDescent(0.5 / d["sigma_star_k2"][0])
    yield "rpca-GD", problem, start, gd, error, d["err_GD_k2"], SMOOTH


def over():
    d = reference("over")
    n = int(d["n"])
    B = measurements(d, n, n) / np.sqrt(float(d["m"]))
    problem = sg.Observed(sg.Sensing((B + B.transpose(0, 2, 1)) / 2), d["y_k2"])
    start, error = sg.Symmetric(d["alpha"] * d["G0"]), error_to(sg.Symmetric(d["L_star_k2"]))
    lam = sg.ScaledGD(0.3, damping=d["lam_k2"])
    yield "over-ScaledGDlam", problem, start, lam, error, d["err_ScaledGDlam_k2"], SMOOTH
    gd = sg.GradientDescent(0.3 / d["sigma_star_k2"][0])
    yield "over-GD", problem, start, gd, error, d["err_GD_k2"], SMOOTH


def overmc():
    d = reference("overmc")
    X = d["X_star"]
    problem, error, start = entries(d, X), error_to(X), sg.spectral(6)
    spec = sg.ScaledGD(0.5)
    yield "overmc-spectral", problem, start, spec, error, d["err_ScaledGDspec"], SMOOTH
    gd = sg.GradientDescent(0.5 / d["step_scale_sigma1"])
    yield "overmc-GD", problem, start, gd, error, d["err_GD"], SMOOTH
    start = sg.LowRank(d["alpha"] * d["GL"], d["alpha"] * d["GR"])
    lam = sg.ScaledGD(0.5, damping=float(d["lam"]))
    yield "overmc-lambda", problem, start, lam, error, d["err_ScaledGDlam"], SMOOTH


def hankel():
    d = reference("hankel")
    x, observed = d["x_star_k2"], d["omega"].astype(bool)
    problem = sg.HankelCompletion(x * observed, observed, int(d["n1"]), float(d["p"]))
    w = problem.lengths

    def error(F):
        return np.sqrt(np.sum(w * abs(problem.signal(F) - x) ** 2) / np.sum(w * abs(x) ** 2))

    start = sg.spectral(3)
    yield "hankel-ScaledGD", problem, start, sg.ScaledGD(0.5), error, d["err_ScaledGD_k2"], SMOOTH
    gd = sg.GradientDescent(0.5 / d["sigma_star_k2"][0])
    yield "hankel-GD", problem, start, gd, error, d["err_GD_k2"], SMOOTH


def msl1():
    d = reference("msl1")
    n = int(d["n"])
    problem = sg.Observed(sg.Sensing(measurements(d, n, n)), d["y_k2"], sg.Absolute())
    step = sg.polyak(np.sum(np.abs(d["y_star_k2"] - d["y_k2"])))
    start, error = sg.spectral(3, keep=1 - float(d["ps"])), error_to(truth_of(d))
    scaled, plain = sg.ScaledGD(step), sg.GradientDescent(step)
    yield "msl1-ScaledSM", problem, start, scaled, error, d["err_ScaledSM_k2"], NONSMOOTH
    yield "msl1-SM", problem, start, plain, error, d["err_SM_k2"], NONSMOOTH


def qsl1():
    d = reference("qsl1")
    problem = sg.Observed(sg.RankOne(d["a"].astype(float)), d["y_k2"], sg.Absolute())
    step = sg.polyak(np.sum(np.abs(d["y_star_k2"] - d["y_k2"])))
    start = sg.spectral(3, keep=1 - float(d["ps"]))
    error = error_to(sg.Symmetric(d["L_star_k2"]))
    scaled, plain = sg.ScaledGD(step), sg.GradientDescent(step)
    yield "qsl1-ScaledSM", problem, start, scaled, error, d["err_ScaledSM_k2"][:61], NONSMOOTH
    yield "qsl1-SM", problem, start, plain, error, d["err_SM_k2"][:61], NONSMOOTH


def tucker_of(d):
    return sg.Tucker(tuple(d[f"{k}_star_k2"] for k in "UVW"), d["G_star_k2"])


def tensor_steps(d):
    """The authors' gradient descent: η/σ²_max for the factors, η for the core."""
    eta, largest = float(d["eta"]), float(d["smax_k2"])
    return sg.GradientDescent((eta / largest**2,) * 3 + (eta,))


def ts():
    d = reference("ts")
    truth = tucker_of(d)
    bits = np.unpackbits(d["bits_packed"], axis=1)[:, : np.prod(truth.shape)]
    A = (2.0 * bits - 1).reshape(-1, *truth.shape) / np.sqrt(float(d["m"]))
    problem = sg.Observed(sg.Sensing(A), d["y_k2"])
    error, start = error_to(truth), sg.hosvd(truth.ranks)
    scaled = sg.ScaledGD(float(d["eta"]))
    yield "ts-ScaledGD", problem, start, scaled, error, d["err_ScaledGD_k2"], SMOOTH
    yield "ts-GD", problem, start, tensor_steps(d), error, d["err_GD_k2"], SMOOTH


def tc():
    d = reference("tc")
    truth = tucker_of(d)
    shape = truth.shape
    index = np.nonzero(np.unpackbits(d["Omega_packed"])[: np.prod(shape)].reshape(shape))
    problem = sg.Observed(sg.Entries(index, shape), truth.full()[index], scale=1 / float(d["p"]))
    error, scaled = error_to(truth), sg.ScaledGD(float(d["eta"]))
    code = sg.diagonal_deleted(truth.ranks, variant="unbiased")
    yield "tc-ScaledGD", problem, code, scaled, error, d["err_ScaledGD_k2"], SMOOTH
    yield "tc-GD", problem, code, tensor_steps(d), error, d["err_GD_k2"], SMOOTH
    text = sg.diagonal_deleted(truth.ranks)
    yield "tc-ScaledGDoff", problem, text, scaled, error, d["err_ScaledGDoff_k2"], SMOOTH
    project = sg.incoherence(float(d["B_k2"]))
    start, method = sg.diagonal_deleted(truth.ranks, project), sg.ScaledGD(0.3, project=project)
    yield "tc-ScaledGDproj", problem, start, method, error, d["err_ScaledGDproj_k2"], SMOOTH


def trpca():
    d = reference("trpca")
    truth = tucker_of(d)
    Y = truth.full()
    Y.flat[d["S_idx_k2"]] += d["S_vals_k2"]
    start, first, ratio = (float(d[f"{k}_k2"]) for k in ("zeta0", "zeta1", "rho"))
    loss = sg.SoftTrim(lambda t: first * ratio ** (t - 1) if t else start)
    problem = sg.Observed(sg.Full(truth.shape), Y, loss)
    method, error = sg.ScaledGD(float(d["eta"])), error_to(truth)
    expected = d["err_ScaledGD_k2"]
    yield "trpca-ScaledGD", problem, sg.hosvd(truth.ranks), method, error, expected, SMOOTH


MAKERS = (ms, mc, rpca, over, overmc, hankel, msl1, qsl1, ts, tc, trpca)
CASES = [case for make in MAKERS for case in make()]


@pytest.mark.parametrize("case", CASES, ids=[case[0] for case in CASES])
def test_trajectory(case):
    _, problem, start, method, error, expected, (relative, absolute) = case
    result = sg.solve(problem, start, method, max_iter=len(expected) - 1, metrics={"error": error})
    errors = np.asarray([record["error"] for record in result.history])
    assert errors.shape == expected.shape
    worst = np.max(np.abs(errors - expected) / (relative * expected + absolute))
    assert worst <= 1


def test_stored_iterates_of_completion():
    d = reference("mc")
    problem = entries(d, truth_of(d).full())
    kept = {}
    sg.solve(
        problem,
        sg.spectral(5),
        sg.ScaledGD(0.5),
        max_iter=40,
        callback=lambda s: kept.update({s.t: s.factors}),
    )
    for t in (0, 1, 5, 20, 40):
        X = d[f"L_ScaledGD_t{t}_k2"] @ d[f"R_ScaledGD_t{t}_k2"].T
        np.testing.assert_allclose(kept[t].full(), X, atol=1e-12)


def test_textbook_switch_of_the_mixed_start():
    """Damping as a function of the state fires at the iteration the reference recorded."""
    d = reference("overmc")
    problem = entries(d, d["X_star"])
    lam, fired = float(d["lam"]), []

    def damping(state):
        smallest = min(np.linalg.svd(B)[1][-1] ** 2 for B in state.factors.blocks)
        if smallest >= lam:
            fired.append(state.t)
        return 0.0 if fired else lam

    start = sg.LowRank(d["alpha"] * d["GL"], d["alpha"] * d["GR"])
    sg.solve(problem, start, sg.ScaledGD(0.5, damping=damping), max_iter=10)
    assert fired[0] == int(d["switch_t"])


def test_operators():
    d = reference("operators")
    A = d["in_A"]
    for fraction, name in ((0.25, "out_T25"), (0.5, "out_T50")):
        trim = sg.TopTrim(fraction).bind(sg.Full(A.shape))
        np.testing.assert_array_equal(A - trim.clean(A), d[name])
    clipped = sg.incoherence(d["in_B"].item())(sg.LowRank(d["in_Lt"], d["in_Rt"]))
    np.testing.assert_allclose(clipped.L, d["out_LB"], atol=1e-14)
    np.testing.assert_allclose(clipped.R, d["out_RB"], atol=1e-14)
    X = d["in_X"]
    soft = X - sg.SoftTrim(d["in_zeta"].item()).clean(X)
    np.testing.assert_allclose(soft, d["out_soft"], atol=1e-15)


def test_tensor_operators():
    d = reference("operators")
    X, core, factors = d["in_X"], d["in_G"], tuple(d[f"in_{k}"] for k in "UVW")
    for k in range(3):  # the monograph orders columns as Fortran does
        fortran = np.reshape(np.moveaxis(X, k, 0), (X.shape[k], -1), order="F")
        np.testing.assert_array_equal(fortran, d[f"out_M{k + 1}"])
        ours = unfold(X, k)
        np.testing.assert_allclose(ours @ ours.T, fortran @ fortran.T, atol=1e-14)
    F = sg.Tucker(factors, core)
    np.testing.assert_allclose(F.full(), d["out_XT"], atol=1e-13)
    partners = F._partner_grams([U.T @ U for U in factors])
    for k, name in enumerate(("bU", "bV", "bW")):
        breve = d[f"out_{name}"]
        np.testing.assert_allclose(partners[k], breve.T @ breve, atol=1e-12)
    clipped = sg.incoherence(d["in_BT"].item())(F)
    for U, name in zip(clipped.factors, ("PU", "PV", "PW"), strict=True):
        np.testing.assert_allclose(U, d[f"out_{name}"], atol=1e-13)
    np.testing.assert_array_equal(clipped.core, core)
    ranks = tuple(int(r) for r in d["in_rr"][0])
    start = sg.hosvd(ranks)(sg.Observed(sg.Full(X.shape), X))
    np.testing.assert_allclose(start.full(), d["out_Xh"], atol=1e-12)
