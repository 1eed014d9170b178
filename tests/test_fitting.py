"""How a matrix is fitted."""

import numpy as np

import scaledgd as sg
from scaledgd.estimators import fitting


def test_the_products_of_a_residual_need_no_residual():
    rng = np.random.default_rng(0)
    index = np.nonzero(rng.random((40, 30)) < 0.6)
    problem = sg.Observed(sg.Entries(index, (40, 30)), rng.standard_normal(len(index[0])))
    L, R = rng.standard_normal((40, 3)), rng.standard_normal((30, 3))
    state = problem.linearize(sg.Bordered(L, R, np.ones(40), np.ones(30)))
    Z, formed = fitting._residual(state), state.view.ambient()
    assert isinstance(Z, fitting._Unformed)
    V, U = rng.standard_normal((30, 4)), rng.standard_normal((40, 4))
    np.testing.assert_allclose(Z.times(V), formed.times(V), atol=1e-12)
    np.testing.assert_allclose(Z.adjoint_times(U), formed.adjoint_times(U), atol=1e-12)
