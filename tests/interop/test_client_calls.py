"""Calls of real clients on our arrays give what they give on NumPy's, as our arrays.

Here: one line a call. Not here: gradients through them (`test_client_gradients.py`), the clients' own suites.
"""

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from clients import CLASSES, HALVES, POINTS, POSITIVE, SIGNAL, TARGET, WEIGHTS, Maker, check_same

xpx = pytest.importorskip("array_api_extra", reason="needs the extra interop")
scipy = pytest.importorskip("scipy", reason="needs the extra interop")
sklearn = pytest.importorskip("sklearn", reason="needs the extra interop")
xarray = pytest.importorskip("xarray", reason="needs the extra interop")
einops = pytest.importorskip("einops", reason="needs the extra interop")

import scipy.cluster.hierarchy
import scipy.cluster.vq
import scipy.differentiate
import scipy.fft
import scipy.integrate
import scipy.interpolate
import scipy.linalg
import scipy.ndimage
import scipy.optimize
import scipy.optimize.elementwise
import scipy.signal
import scipy.special
import scipy.stats
import sklearn.metrics
from einops import array_api as rearranging
from scipy.spatial.transform import Rotation
from sklearn.decomposition import PCA
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.kernel_approximation import Nystroem
from sklearn.linear_model import LogisticRegression, PoissonRegressor, Ridge, RidgeClassifier, RidgeCV
from sklearn.metrics import pairwise
from sklearn.mixture import GaussianMixture
from sklearn.model_selection import GridSearchCV, cross_val_predict, train_test_split
from sklearn.naive_bayes import GaussianNB
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import (
    Binarizer,
    KernelCenterer,
    LabelEncoder,
    MaxAbsScaler,
    MinMaxScaler,
    Normalizer,
    PolynomialFeatures,
    StandardScaler,
)

Call = Callable[[Maker], Any]
window = np.hanning(11)
firsts = np.array([0], dtype=np.int64)
thirds = [POINTS[:, k] for k in range(3)]
shifted = TARGET + SIGNAL[:60]
probabilities = 1 / (1 + np.exp(-TARGET))
rolled = np.roll(CLASSES, 3)


def grid(a: Maker) -> Any:
    """Return POINTS as a labelled array."""
    return xarray.DataArray(a(POINTS), dims=("a", "b"))


def pca(solver: str, **options: Any) -> Any:
    """Return a PCA of three components."""
    return PCA(3, svd_solver=solver, **options)


EXACT: dict[str, Call] = {
    "extra cov": lambda a: xpx.cov(a(POINTS.T)),
    "extra kron": lambda a: xpx.kron(a(POSITIVE), a(np.eye(2))),
    "extra pad": lambda a: xpx.pad(a(POINTS), (1, 2), constant_values=3.0),
    "extra create_diagonal": lambda a: xpx.create_diagonal(a(WEIGHTS), offset=1),
    "extra apply_where": lambda a: xpx.apply_where(a(WEIGHTS) > 0, (a(WEIGHTS),), lambda v: 1 / v, fill_value=-1.0),
    "extra at slice": lambda a: xpx.at(a(WEIGHTS))[1:3].add(10.0),
    "extra at mask": lambda a: xpx.at(a(WEIGHTS))[a(WEIGHTS) > 0].set(0.0),
    "extra one_hot": lambda a: xpx.one_hot(a(CLASSES), 3),
    "extra sinc": lambda a: xpx.sinc(a(WEIGHTS)),
    "extra sets": lambda a: (xpx.nunique(a(CLASSES)), xpx.setdiff1d(a(CLASSES), a(firsts)), xpx.isin(a(CLASSES), a(firsts))),
    "extra isclose": lambda a: xpx.isclose(a(WEIGHTS), a(WEIGHTS + 1e-12)),
    "extra nan_to_num": lambda a: xpx.nan_to_num(a([np.nan, np.inf, 1.0])),
    "extra partition": lambda a: xpx.partition(a(np.sort(SIGNAL[:50])), 7),
    "extra lazy_apply": lambda a: xpx.lazy_apply(np.cumsum, a(SIGNAL), as_numpy=True),
    "fft": lambda a: scipy.fft.fft(a(SIGNAL)),
    "fft real": lambda a: scipy.fft.irfft(scipy.fft.rfft(a(SIGNAL))),
    "fft of two axes": lambda a: scipy.fft.fftn(a(POINTS)),
    "fft dct": lambda a: scipy.fft.dct(a(SIGNAL)),
    "fft shift": lambda a: scipy.fft.fftshift(a(SIGNAL)),
    "special logsumexp": lambda a: scipy.special.logsumexp(a(POINTS), axis=1),
    "special softmax": lambda a: scipy.special.softmax(a(POINTS), axis=1),
    "special log_softmax": lambda a: scipy.special.log_softmax(a(POINTS), axis=1),
    "special erf": lambda a: (scipy.special.erf(a(WEIGHTS)), scipy.special.gammaln(a(np.abs(WEIGHTS) + 1))),
    "special xlogy": lambda a: (scipy.special.xlogy(a(np.abs(WEIGHTS)), a(np.abs(WEIGHTS) + 1)), scipy.special.entr(a(np.abs(WEIGHTS)))),
    "special logistic": lambda a: (scipy.special.ndtr(a(WEIGHTS)), scipy.special.expit(a(WEIGHTS)), scipy.special.logit(a([0.25, 0.5]))),
    "signal detrend": lambda a: scipy.signal.detrend(a(SIGNAL)),
    "signal fftconvolve": lambda a: scipy.signal.fftconvolve(a(SIGNAL), a(window)),
    "signal convolve": lambda a: scipy.signal.convolve(a(SIGNAL), a(window), method="fft"),
    "signal correlate": lambda a: scipy.signal.correlate(a(SIGNAL), a(window), method="fft"),
    "signal hilbert": lambda a: scipy.signal.hilbert(a(SIGNAL)),
    "signal envelope": lambda a: scipy.signal.envelope(a(SIGNAL)),
    "signal resample": lambda a: scipy.signal.resample(a(SIGNAL), 100),
    "signal sosfilt": lambda a: scipy.signal.sosfilt(a(scipy.signal.butter(4, 0.2, output="sos")), a(SIGNAL)),
    "signal savgol": lambda a: scipy.signal.savgol_filter(a(SIGNAL), 11, 3),
    "signal freqz": lambda a: scipy.signal.freqz(a([1.0, 0.5]), a([1.0, -0.3])),
    "signal zpk2tf": lambda a: scipy.signal.zpk2tf(a([1.0, 2.0]), a([0.5, 0.25]), 2.0),
    "signal window": lambda a: scipy.signal.windows.hann(33, xp=a.xp),
    "signal firwin": lambda a: scipy.signal.firwin(11, a([0.3])),
    "stats ttest": lambda a: tuple(scipy.stats.ttest_ind(a(thirds[0]), a(thirds[1]))),
    "stats pearsonr": lambda a: tuple(scipy.stats.pearsonr(a(thirds[0]), a(TARGET))),
    "stats linregress": lambda a: scipy.stats.linregress(a(thirds[0]), a(TARGET)).slope,
    "stats spearman": lambda a: scipy.stats.spearmanrho(a(thirds[0]), a(TARGET)).statistic,
    "stats shape": lambda a: (scipy.stats.skew(a(POINTS)), scipy.stats.kurtosis(a(POINTS))),
    "stats normality": lambda a: (scipy.stats.normaltest(a(POINTS)).pvalue, scipy.stats.jarque_bera(a(SIGNAL)).statistic),
    "stats zscore": lambda a: scipy.stats.zscore(a(POINTS)),
    "stats entropy": lambda a: scipy.stats.entropy(a(np.abs(POINTS)), axis=1),
    "stats means": lambda a: (scipy.stats.gmean(a(np.abs(POINTS))), scipy.stats.hmean(a(np.abs(POINTS)))),
    "stats rankdata": lambda a: scipy.stats.rankdata(a(np.round(SIGNAL, 1))),
    "stats quantile": lambda a: scipy.stats.quantile(a(SIGNAL), a([0.1, 0.5, 0.9])),
    "stats groups": lambda a: [f(*[a(t) for t in thirds]).pvalue for f in (scipy.stats.f_oneway, scipy.stats.kruskal)],
    "stats mannwhitney": lambda a: scipy.stats.mannwhitneyu(a(thirds[0]), a(thirds[1]), method="asymptotic").pvalue,
    "stats wilcoxon": lambda a: scipy.stats.wilcoxon(a(thirds[0]), method="asymptotic").pvalue,
    "stats chisquare": lambda a: scipy.stats.chisquare(a([16.0, 18, 16, 14, 12, 12])).pvalue,
    "stats combine": lambda a: scipy.stats.combine_pvalues(a([0.01, 0.2, 0.3]), method="stouffer").pvalue,
    "stats bootstrap": lambda a: scipy.stats.bootstrap(
        (a(SIGNAL[:40]),), lambda x, axis: a.xp.mean(x, axis=axis), n_resamples=50, rng=np.random.default_rng(1), method="percentile"
    ).confidence_interval.low,
    "stats moments": lambda a: (scipy.stats.moment(a(POINTS), 3), scipy.stats.lmoment(a(SIGNAL))),
    "cluster vq": lambda a: scipy.cluster.vq.vq(scipy.cluster.vq.whiten(a(POINTS)), scipy.cluster.vq.whiten(a(POINTS))[:4, :]),
    "cluster kmeans": lambda a: scipy.cluster.vq.kmeans2(a(POINTS), a(POINTS[:3]), minit="matrix")[0],
    "cluster linkage": lambda a: scipy.cluster.hierarchy.fcluster(scipy.cluster.hierarchy.linkage(a(POINTS[:20]), "ward"), 3, "maxclust"),
    "integrate samples": lambda a: (scipy.integrate.trapezoid(a(SIGNAL)), scipy.integrate.simpson(a(SIGNAL)), scipy.integrate.cumulative_trapezoid(a(SIGNAL))),
    "integrate cubature": lambda a: scipy.integrate.cubature(lambda x: a.xp.exp(-a.xp.sum(x**2, axis=-1)), a(np.zeros(2)), a(np.ones(2))).estimate,
    "integrate tanhsinh": lambda a: scipy.integrate.tanhsinh(lambda x: a.xp.exp(-x * x), a(0.0), a([1.0, 2.0])).integral,
    "ndimage": lambda a: (scipy.ndimage.gaussian_filter(a(POINTS), 1.0), scipy.ndimage.zoom(a(POINTS), 2.0), scipy.ndimage.sobel(a(POINTS))),
    "linalg block_diag": lambda a: scipy.linalg.block_diag(a(POSITIVE), a(np.eye(2))),
    "linalg procrustes": lambda a: scipy.linalg.orthogonal_procrustes(a(POINTS), a(POINTS[:, ::-1].copy())),
    "optimize rosen": lambda a: [f(a(WEIGHTS)) for f in (scipy.optimize.rosen, scipy.optimize.rosen_der, scipy.optimize.rosen_hess)],
    "optimize find_root": lambda a: scipy.optimize.elementwise.find_root(lambda x, c: x**2 - c, (a([0.0, 0.0]), a([3.0, 3.0])), args=(a([2.0, 4.0]),)).x,
    "differentiate": lambda a: scipy.differentiate.derivative(lambda x: a.xp.exp(x), a([0.0, 1.0])).df,
    "interpolate": lambda a: scipy.interpolate.CubicSpline(a(np.linspace(0, 1, 9)), a(np.linspace(0, 1, 9) ** 2))(a([0.1, 0.35])),
    "rotation": lambda a: (
        Rotation.from_rotvec(a([[0.1, 0.2, 0.3], [0, 0, 1.0]])).as_matrix(),
        Rotation.from_rotvec(a([[0.1, 0.2, 0.3]])).apply(a([[1.0, 0, 0]])),
    ),
    "sklearn scalers": lambda a: [s().fit_transform(a(POINTS)) for s in (StandardScaler, MinMaxScaler, MaxAbsScaler, Normalizer, Binarizer)],
    "sklearn polynomial": lambda a: PolynomialFeatures(2).fit_transform(a(POINTS)),
    "sklearn centerer": lambda a: KernelCenterer().fit_transform(a(POINTS @ POINTS.T)),
    "sklearn labels": lambda a: LabelEncoder().fit(a(CLASSES * 7)).transform(a(CLASSES * 7)),
    "sklearn distances": lambda a: (pairwise.euclidean_distances(a(POINTS), a(POINTS[:7])), pairwise.cosine_similarity(a(POINTS)), pairwise.manhattan_distances(a(POINTS), a(POINTS[:5]))),
    "sklearn kernels": lambda a: [f(a(np.abs(POINTS))) for f in (pairwise.rbf_kernel, pairwise.polynomial_kernel, pairwise.sigmoid_kernel, pairwise.linear_kernel, pairwise.chi2_kernel, pairwise.laplacian_kernel)],
    "sklearn confusion": lambda a: sklearn.metrics.confusion_matrix(a(CLASSES), a(rolled)),
    "sklearn split": lambda a: tuple(train_test_split(a(POINTS), a(TARGET), random_state=0)),
    "xarray reduce": lambda a: (grid(a).mean("a", skipna=False).data, grid(a).sum(skipna=False).data),
    "xarray arithmetic": lambda a: ((grid(a) * 2 + grid(a).isel(b=0)).data, grid(a).where(grid(a) > 0, 0.0).data),
    "xarray layout": lambda a: (xarray.concat([grid(a), grid(a)], dim="a").data, grid(a).T.data, grid(a).stack(z=("a", "b")).data),
    "xarray isel": lambda a: (grid(a).isel(a=slice(1, 9, 2)).data, grid(a).isel(a=[0, 2, 4]).data),
    "xarray product": lambda a: (grid(a) @ xarray.DataArray(a(WEIGHTS), dims=("b",))).data,
    "xarray others": lambda a: (grid(a).astype(a.xp.float32).data, grid(a).roll(a=2).data, grid(a).expand_dims("q").data),
    "einops rearrange": lambda a: (rearranging.rearrange(a(POINTS), "(a b) c -> b (a c)", a=6), rearranging.reduce(a(POINTS), "a b -> b", "mean"), rearranging.repeat(a(WEIGHTS), "a -> a r", r=3)),
    "einops pack": lambda a: rearranging.pack([a(POINTS), a(POINTS)], "a *")[0],
}  # fmt: skip

CLOSE: dict[str, Call] = {  # what iterates, or has a free sign
    "sklearn pca": lambda a: (pca("full").fit(a(POINTS)).explained_variance_, a.xp.abs(pca("full").fit_transform(a(POINTS)))),
    "sklearn pca covariance": lambda a: pca("covariance_eigh").fit(a(POINTS)).inverse_transform(pca("covariance_eigh").fit_transform(a(POINTS))),
    "sklearn pca randomized": lambda a: pca("randomized", random_state=0, power_iteration_normalizer="QR").fit(a(POINTS)).explained_variance_,
    "sklearn ridge": lambda a: (Ridge(solver="svd").fit(a(POINTS), a(TARGET)).coef_, Ridge(solver="svd").fit(a(POINTS), a(TARGET)).predict(a(POINTS))),
    "sklearn ridge cv": lambda a: RidgeCV(alphas=[0.1, 1.0, 10.0]).fit(a(POINTS), a(TARGET)).coef_,
    "sklearn ridge classifier": lambda a: RidgeClassifier(solver="svd").fit(a(POINTS), a(HALVES)).predict(a(POINTS)),
    "sklearn lda": lambda a: LinearDiscriminantAnalysis().fit(a(POINTS), a(CLASSES)).predict_proba(a(POINTS)),
    "sklearn bayes": lambda a: GaussianNB().fit(a(POINTS), a(CLASSES)).predict_proba(a(POINTS)),
    "sklearn mixture": lambda a: GaussianMixture(2, random_state=0, init_params="random").fit(a(POINTS)).means_,
    "sklearn logistic": lambda a: LogisticRegression(C=1.0).fit(a(POINTS), a(HALVES)).coef_,
    "sklearn poisson": lambda a: PoissonRegressor(alpha=1.0).fit(a(POINTS), a(np.abs(TARGET))).coef_,
    "sklearn nystroem": lambda a: Nystroem(kernel="rbf", n_components=20, random_state=0).fit_transform(a(POINTS)),
    "sklearn cross validation": lambda a: cross_val_predict(Ridge(solver="svd"), a(POINTS), a(TARGET), cv=3),
    "sklearn pipeline": lambda a: make_pipeline(StandardScaler(), pca("full"), Ridge(solver="svd")).fit(a(POINTS), a(TARGET)).predict(a(POINTS)),
}  # fmt: skip

NUMBERS: dict[str, Call] = {  # results are Python numbers, or NumPy's by design
    "sklearn classification": lambda a: [f(a(CLASSES), a(rolled)) for f in (sklearn.metrics.accuracy_score, sklearn.metrics.zero_one_loss, sklearn.metrics.balanced_accuracy_score)],
    "sklearn f1": lambda a: sklearn.metrics.f1_score(a(CLASSES), a(rolled), average="macro"),
    "sklearn regression": lambda a: [f(a(TARGET), a(shifted)) for f in (sklearn.metrics.mean_squared_error, sklearn.metrics.r2_score, sklearn.metrics.mean_absolute_error, sklearn.metrics.max_error)],
    "sklearn ranking": lambda a: [sklearn.metrics.roc_auc_score(a(HALVES), a(shifted)), sklearn.metrics.average_precision_score(a(HALVES), a(shifted))],
    "sklearn losses": lambda a: [sklearn.metrics.log_loss(a(HALVES), a(probabilities)), sklearn.metrics.brier_score_loss(a(HALVES), a(probabilities))],
    "sklearn roc_curve": lambda a: list(sklearn.metrics.roc_curve(a(HALVES), a(shifted))[:2]),
    "sklearn grid search": lambda a: float(GridSearchCV(Ridge(solver="svd"), {"alpha": [0.1, 1.0, 10.0]}, cv=3).fit(a(POINTS), a(TARGET)).best_score_),
    "xarray mean": lambda a: grid(a).mean("a").data,  # skips NaN by NumPy's own nanmean
    "numpy asarray": lambda a: np.asarray(a(POINTS)),
    "numpy from_dlpack": lambda a: np.from_dlpack(a(POINTS)),
}  # fmt: skip


@pytest.fixture(autouse=True)
def dispatching():
    """Let scikit-learn take our arrays, and keep the clients' own warnings out of the summary."""
    with sklearn.config_context(array_api_dispatch=True), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@pytest.mark.parametrize("name", EXACT)
def test_equals_numpy(name: str) -> None:
    check_same(EXACT[name], 1e-8)


@pytest.mark.parametrize("name", CLOSE)
def test_is_close_to_numpy(name: str) -> None:
    check_same(CLOSE[name], 1e-4 if "logistic" in name or "poisson" in name else 1e-5)


@pytest.mark.parametrize("name", NUMBERS)
def test_numbers_equal_numpy(name: str) -> None:
    check_same(NUMBERS[name], 1e-6, native=False)
