"""Gradients flow through SciPy, scikit-learn and array-api-extra code that is generic over the namespace.

Here: one line a call; each gradient is compared with a central difference along a random direction. Calls that convert
to NumPy inside must refuse arrays that need gradients: a value without its history would be a wrong gradient.
Not here: values (`test_client_calls.py`).
"""

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import polygrad as pg

xpx = pytest.importorskip("array_api_extra", reason="needs the extra interop")
scipy = pytest.importorskip("scipy", reason="needs the extra interop")
sklearn = pytest.importorskip("sklearn", reason="needs the extra interop")


import scipy.fft
import scipy.integrate
import scipy.linalg
import scipy.optimize
import scipy.signal
import scipy.special
import scipy.stats
from scipy.spatial.transform import Rotation
from sklearn.decomposition import PCA
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.linear_model import Ridge
from sklearn.metrics import pairwise
from sklearn.preprocessing import MinMaxScaler, Normalizer, PolynomialFeatures, StandardScaler

Call = Callable[[Any], Any]
draw = np.random.default_rng(0)
TABLE = draw.normal(size=(12, 3))
LINE = draw.normal(size=9)
TARGET = draw.normal(size=12)
HALVES = (TARGET > 0).astype(np.int64)

FLOWING: dict[str, tuple[Call, Any]] = {
    "extra cov": (lambda x: xpx.cov(x.mT), TABLE),
    "extra kron": (lambda x: xpx.kron(x, x), TABLE[:3]),
    "extra pad": (lambda x: xpx.pad(x, 2), LINE),
    "extra sinc": (xpx.sinc, LINE),
    "extra apply_where": (lambda x: xpx.apply_where(x > 0, (x,), lambda a: a**3, fill_value=0.0), LINE),
    "extra create_diagonal": (xpx.create_diagonal, LINE),
    "extra at": (lambda x: xpx.at(x * 1.0)[2:4].multiply(3.0), LINE),
    "special logsumexp": (lambda x: scipy.special.logsumexp(x, axis=-1), TABLE),
    "special softmax": (lambda x: scipy.special.softmax(x, axis=-1) ** 2, TABLE),
    "special log_softmax": (lambda x: scipy.special.log_softmax(x, axis=-1), TABLE),
    "special erf": (scipy.special.erf, LINE),
    "special erfc": (scipy.special.erfc, LINE),
    "special ndtr": (scipy.special.ndtr, LINE),
    "special log_ndtr": (scipy.special.log_ndtr, LINE),
    "special expit": (scipy.special.expit, LINE),
    "special entr": (lambda x: scipy.special.entr(x * x), LINE),
    "special gammaln": (lambda x: scipy.special.gammaln(x * x + 1), LINE),
    "special digamma": (lambda x: scipy.special.psi(x * x + 1), LINE),
    "special xlogy": (lambda x: scipy.special.xlogy(x * x, x * x + 1), LINE),
    "special betainc": (lambda x: scipy.special.betainc(x * x + 1, 2.0, scipy.special.expit(x)), LINE),
    "special gammaincc": (lambda x: scipy.special.gammaincc(x * x + 1, x * x + 0.5), LINE),
    "stats pearsonr": (lambda x: scipy.stats.pearsonr(x[:, 0], x[:, 1]).statistic, TABLE),
    "stats pearsonr p-value": (lambda x: scipy.stats.pearsonr(x[:, 0], x[:, 1]).pvalue, TABLE),
    "stats ttest": (lambda x: scipy.stats.ttest_ind(x[:, 0], x[:, 1]).statistic, TABLE),
    "stats ttest p-value": (lambda x: scipy.stats.ttest_ind(x[:, 0], x[:, 1]).pvalue, TABLE),
    "stats entropy": (lambda x: scipy.stats.entropy(x * x + 0.1), LINE),
    "stats zscore": (lambda x: scipy.stats.zscore(x) ** 3, TABLE),
    "stats skew": (scipy.stats.skew, TABLE),
    "stats kurtosis": (scipy.stats.kurtosis, TABLE),
    "stats gmean": (lambda x: scipy.stats.gmean(x * x + 1), TABLE),
    "stats moment": (lambda x: scipy.stats.moment(x, 3), TABLE),
    "stats quantile": (lambda x: scipy.stats.quantile(x, pg.asarray(0.3)), LINE),
    "stats variation": (lambda x: scipy.stats.variation(x + 3), LINE),
    "fft": (lambda x: abs(scipy.fft.fft(x)), LINE),
    "fft real": (lambda x: abs(scipy.fft.rfft(x)), LINE),
    "signal fftconvolve": (lambda x: scipy.signal.fftconvolve(x, x), LINE),
    "signal hilbert": (lambda x: abs(scipy.signal.hilbert(x)), LINE),
    "signal resample": (lambda x: scipy.signal.resample(x, 5), LINE),
    "integrate trapezoid": (lambda x: scipy.integrate.trapezoid(x**2), LINE),
    "integrate cubature": (
        lambda x: scipy.integrate.cubature(
            lambda z: pg.exp(-(x[0] ** 2) * pg.sum(z**2, axis=-1)), pg.zeros(2), pg.ones(2)
        ).estimate,
        LINE[:1],
    ),
    "optimize rosen": (scipy.optimize.rosen, LINE),
    "optimize rosen_der": (scipy.optimize.rosen_der, LINE),
    "linalg block_diag": (lambda x: scipy.linalg.block_diag(x, x), TABLE),
    "linalg procrustes": (lambda x: scipy.linalg.orthogonal_procrustes(x, pg.asarray(TABLE[:, ::-1].copy()))[1], TABLE),
    "rotation": (lambda x: Rotation.from_rotvec(x).as_matrix(), TABLE),
    "rotation of points": (lambda x: Rotation.from_rotvec(x).apply(pg.asarray(TABLE)), TABLE),
    "sklearn rbf": (pairwise.rbf_kernel, TABLE),
    "sklearn distances": (lambda x: pairwise.euclidean_distances(x, pg.asarray(TABLE[:4] + 1)), TABLE),
    "sklearn cosine": (pairwise.cosine_similarity, TABLE),
    "sklearn polynomial kernel": (pairwise.polynomial_kernel, TABLE),
    "sklearn standard scaler": (lambda x: StandardScaler().fit_transform(x) ** 3, TABLE),
    "sklearn min-max scaler": (lambda x: MinMaxScaler().fit_transform(x) ** 2, TABLE),
    "sklearn polynomial features": (lambda x: PolynomialFeatures(2).fit_transform(x), TABLE),
    "sklearn normalizer": (lambda x: Normalizer().fit_transform(x), TABLE),
    "sklearn ridge": (lambda x: Ridge(solver="svd").fit(x, pg.asarray(TARGET)).coef_, TABLE),
    "sklearn ridge prediction": (lambda x: Ridge(solver="svd").fit(x, pg.asarray(TARGET)).predict(x), TABLE),
    "sklearn pca": (lambda x: PCA(2, svd_solver="full").fit(x).explained_variance_, TABLE),
    "sklearn lda": (
        lambda x: LinearDiscriminantAnalysis().fit(x, pg.asarray(HALVES)).decision_function(x), TABLE
    ),
}  # fmt: skip

LEAVING: dict[str, tuple[Call, Any]] = {
    "signal savgol": (lambda x: scipy.signal.savgol_filter(x, 5, 2), LINE),
    "signal detrend": (scipy.signal.detrend, LINE),
    "fft dct": (scipy.fft.dct, LINE),
    "integrate simpson": (lambda x: scipy.integrate.simpson(x**2), LINE),
    "stats linregress": (lambda x: scipy.stats.linregress(x[:, 0], x[:, 1]).slope, TABLE),
}


@pytest.fixture(autouse=True)
def dispatching():
    """Let scikit-learn take our arrays, and keep the clients' own warnings out of the summary."""
    with sklearn.config_context(array_api_dispatch=True), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@pytest.mark.parametrize("name", FLOWING)
def test_gradient_flows(name: str) -> None:
    call, point = FLOWING[name]
    x = pg.asarray(point).requires_grad_()
    out = call(x)
    assert isinstance(out, pg.Array)
    assert out.requires_grad, "the graph was lost"
    weights = pg.asarray(np.random.default_rng(3).normal(size=out.shape))
    pg.sum(out * weights).backward()
    direction = np.random.default_rng(4).normal(size=point.shape)
    step = 1e-6

    def value(moved: Any) -> float:
        return float(pg.sum(call(pg.asarray(moved)) * weights))

    numeric = (value(point + step * direction) - value(point - step * direction)) / (2 * step)
    found = float(np.sum(x.grad.numpy() * direction))
    assert found == pytest.approx(numeric, rel=1e-4, abs=1e-4)


@pytest.mark.parametrize("name", LEAVING)
def test_what_leaves_the_graph_refuses(name: str) -> None:
    call, point = LEAVING[name]
    with pytest.raises(pg.GradError, match=r"\.detach\(\)"):
        call(pg.asarray(point).requires_grad_())


def test_rosenbrock_has_scipys_own_derivatives() -> None:
    x = pg.asarray(LINE)
    np.testing.assert_allclose(pg.grad(scipy.optimize.rosen)(x).numpy(), scipy.optimize.rosen_der(LINE), rtol=1e-10)
    np.testing.assert_allclose(
        pg.hessian(scipy.optimize.rosen)(x).numpy(), scipy.optimize.rosen_hess(LINE), rtol=1e-9, atol=1e-9
    )
