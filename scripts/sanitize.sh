#!/usr/bin/env bash
# Build the kernels with sanitizers, and run their tests.
#
#     scripts/sanitize.sh [address|thread] ...      both by default
#
# "address" also finds undefined behaviour, and runs with every instruction set there is; "thread"
# takes long and runs with the widest, because threads do not depend on it. The loops are compiled
# once for every instruction set and chosen when they are loaded: SCALEDGD_INSTRUCTIONS forces
# baseline, wide (AVX2) or widest (AVX-512), and a processor without one of them runs the next
# best. Random fits follow the tests, FITS of them (20 by default) per instruction set, others for
# each. Needs GCC, CMake, Ninja, nanobind and pytest; set PYTHON to use another interpreter.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
python=${PYTHON:-python}
work=$(mktemp -d)
cd "$root"
first=0
trap 'rm -rf "$work"' EXIT
tests=(tests/test_kernels*.py tests/test_blocks*.py tests/test_gaussian.py)

for kind in "${@:-address thread}"; do
  for sanitizer in $kind; do
    flags=$sanitizer libraries=(libtsan.so) chosen=() sets=(baseline wide widest)
    if [ "$sanitizer" = address ]; then
      flags=address,undefined libraries=(libasan.so libubsan.so)
    else
      # Some tests change arrays while kernels read them, on purpose. Forked children have none of
      # their parent's threads, which the thread sanitizer does not follow.
      chosen=(-k "not meanwhile and not forked") sets=(widest)
    fi
    cmake -S "$root" -B "$work/$sanitizer" -G Ninja -DCMAKE_BUILD_TYPE=Release \
      -DPython_EXECUTABLE="$(command -v "$python")" \
      -Dnanobind_DIR="$("$python" -m nanobind --cmake_dir)" \
      -DSCALEDGD_SANITIZE="$flags" >"$work/log" || { cat "$work/log"; exit 1; }
    cmake --build "$work/$sanitizer" >"$work/log" || { cat "$work/log"; exit 1; }
    mkdir "$work/src-$sanitizer"
    cp -r "$root/src/scaledgd" "$work/src-$sanitizer/"
    rm -f "$work/src-$sanitizer"/scaledgd/kernels/_compiled*.so
    cp "$work/$sanitizer"/_compiled*.so "$work/src-$sanitizer/scaledgd/kernels/"
    # an editable install would import what it was built from, without sanitizers
    echo 'import sys; sys.meta_path[:] = [f for f in sys.meta_path if "scaledgd" not in type(f).__module__]' \
      >"$work/src-$sanitizer/sitecustomize.py"
    preload=
    for library in "${libraries[@]}" libstdc++.so; do
      preload+="$(g++ -print-file-name="$library") "
    done
    for instructions in "${sets[@]}"; do
      echo "== $flags, $instructions"
      (
        export PYTHONPATH="$work/src-$sanitizer" SCALEDGD_INSTRUCTIONS=$instructions
        export OMP_NUM_THREADS=1 SCALEDGD_NUM_THREADS=4 PYTHONMALLOC=malloc
        export ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1
        export UBSAN_OPTIONS=print_stacktrace=1
        export TSAN_OPTIONS=halt_on_error=1:exitcode=66:die_after_fork=0
        LD_PRELOAD=$preload "$python" -c '
import sys, scaledgd.kernels.cpp as cpp
sys.exit(None if cpp.C.__file__.startswith(sys.argv[1]) else "not the kernels with sanitizers")' "$work"
        LD_PRELOAD=$preload "$python" -m pytest -q -n 0 -p no:cacheprovider "${tests[@]}" "${chosen[@]}"
        # answers are slow here, and judged elsewhere: what a sanitizer finds ends the process.
        # All fits are in this one, because the thread sanitizer does not follow forks. It ends
        # Python as soon as polars makes a frame.
        LD_PRELOAD=$preload "$python" -c '
import sys
from benchmarks.trust.instances import drawn
from benchmarks.trust.judge import judged
first, count = map(int, sys.argv[2:])
possible = lambda number: sys.argv[1] != "thread" or drawn(0, number).form != "polars"
fits = [judged(0, number) for number in range(first, first + count) if possible(number)]
print(len(fits), "random fits, from number", first)' "$sanitizer" "$first" "${FITS:-20}"
      )
      first=$((first + ${FITS:-20}))
    done
  done
done
