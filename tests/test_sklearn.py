"""MetrixEmbedding as scikit-learn expects an estimator to be, and what it does to neighbours."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.utils.estimator_checks import estimator_checks_generator

from metrix import evaluate
from metrix.errors import InvalidInput
from metrix.sklearn import MetrixEmbedding

CHECKS = list(estimator_checks_generator(MetrixEmbedding(max_iter=3), mark="skip"))


@pytest.mark.parametrize(
    ("estimator", "check"), CHECKS, ids=lambda value: getattr(getattr(value, "func", None), "__name__", "")
)
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.SkipTestWarning")
def test_checks_of_scikit_learn(estimator: MetrixEmbedding, check) -> None:
    if getattr(check, "func", check).__name__ == "check_array_api_input":
        pytest.skip("needs SCIPY_ARRAY_API")
    check(estimator)


@pytest.fixture(scope="module")
def data() -> tuple[np.ndarray, np.ndarray]:
    """Classes differ in five directions; five others are the same noise in all of them, twice as strong."""
    rng = np.random.default_rng(0)
    signal = np.repeat(rng.normal(size=(20, 5)), 15, axis=0) + 0.25 * rng.normal(size=(300, 5))
    vectors = np.hstack([signal, 2 * rng.normal(size=(300, 5))]) @ rng.normal(size=(10, 24))
    return vectors.astype(np.float32), np.repeat(np.arange(20), 15)


def test_neighbours_of_embeddings_share_classes_more_often_than_those_of_vectors(data) -> None:
    X, y = data
    train = np.arange(300) % 3 > 0
    plain = KNeighborsClassifier().fit(X[train], y[train]).score(X[~train], y[~train])
    pipeline = make_pipeline(MetrixEmbedding(n_components=16, max_iter=60, random_state=0), KNeighborsClassifier())
    assert pipeline.fit(X[train], y[train]).score(X[~train], y[~train]) > plain + 0.3


def test_classes_that_were_not_seen_are_embedded_too(data) -> None:
    X, y = data
    seen = y < 12
    model = MetrixEmbedding(n_components=8, max_iter=40, random_state=0).fit(X[seen], y[seen])
    assert model.classes_.tolist() == list(range(12))
    found = model.transform(X[~seen])
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, rtol=1e-5)
    plain = evaluate.recall_at_k(X[~seen], y[~seen], ks=(1,))[1]
    assert evaluate.recall_at_k(found, y[~seen], ks=(1,))[1] > plain + 0.1


@pytest.mark.parametrize("mixup", ["none", "input", "feature", "embed"])
@pytest.mark.parametrize("loss", ["multi-similarity", "proxy-anchor", "supcon"])
def test_losses_and_mixup_types_lower_the_loss(loss: str, mixup: str, data) -> None:
    X, y = data
    options = {"hidden": (16, 16), "mix_at": 1, "batch_size": 40, "max_iter": 12, "learning_rate": 1e-2}
    model = MetrixEmbedding(8, loss=loss, mixup=mixup, random_state=0, **options).fit(X, y)
    assert len(model.loss_curve_) == 12
    assert np.mean(model.loss_curve_[-3:]) < np.mean(model.loss_curve_[:3])


def test_a_seed_gives_the_same_embedding_and_leaves_the_global_state_alone(data) -> None:
    X, y = data
    before = torch.get_rng_state()
    one, other = (MetrixEmbedding(max_iter=3, random_state=5).fit_transform(X, y) for _ in range(2))
    np.testing.assert_array_equal(one, other)
    assert torch.equal(before, torch.get_rng_state())
    assert not np.array_equal(one, MetrixEmbedding(max_iter=3, random_state=6).fit_transform(X, y))


def test_text_labels_names_of_outputs_copies_and_pickles(data) -> None:
    X, y = data
    model = MetrixEmbedding(n_components=4, max_iter=2, random_state=0).fit(
        X, np.array(list("abcdefghijklmnopqrst"))[y]
    )
    assert model.get_feature_names_out().tolist() == [f"metrixembedding{k}" for k in range(4)]
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(model)).transform(X), model.transform(X))
    assert clone(model).get_params()["n_components"] == 4


def test_settings_are_searched_by_a_grid(data) -> None:
    X, y = data
    pipeline = make_pipeline(MetrixEmbedding(max_iter=3, random_state=0), KNeighborsClassifier())
    search = GridSearchCV(pipeline, {"metrixembedding__strength": [0.1, 0.4]}, cv=2).fit(X, y)
    assert search.best_params_["metrixembedding__strength"] in (0.1, 0.4)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"loss": "contrastiv"}, "did you mean 'contrastive'"),
        ({"mixup": "imput"}, "did you mean 'input'"),
        ({"loss_options": {"margni": 1}}, "margni"),
        ({"loss": "supcon", "loss_options": {"margin": 1.0}}, "has no margin; it has temperature"),
        ({"mix_at": 2}, "mix_at: expected at most 1"),
        ({"batch_size": 4}, "batch_size: expected at least 10 with per_class=5"),
        ({"max_iter": 0}, "max_iter: expected an integer ≥ 1"),
        ({"learning_rate": 0}, "learning_rate: expected a number > 0"),
        ({"loss": "triplet", "mixup": "embed"}, "[Ee]xpected"),
    ],
)
def test_mistakes_say_what_was_expected(options: dict, words: str, data) -> None:
    with pytest.raises(InvalidInput, match=words):
        MetrixEmbedding(**options).fit(*data)
