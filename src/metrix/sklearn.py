"""Metrix as a transformer of scikit-learn: vectors with class labels to embeddings in which neighbours share a class.

from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from metrix.sklearn import MetrixEmbedding

make_pipeline(MetrixEmbedding(), KNeighborsClassifier()).fit(X, y)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from metrix.data.samplers import BalancedSampler
from metrix.errors import InvalidInput, check_integer, check_number
from metrix.machine.devices import seed_cpu
from metrix.model import Embedder
from metrix.model.mlp import MLP_BACKBONE

if TYPE_CHECKING:
    from metrix.core.objective import Objective

__all__ = ["MetrixEmbedding"]


class MetrixEmbedding(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """A supervised embedding of vectors: a small network trained with a metric-learning loss and mixup.

    Args:
        n_components: length of the embedding.
        hidden: widths of the hidden layers of the network; none is a linear map.
        loss: the loss, a name that `metrix methods` lists.
        loss_options: its parameters, such as {"margin": 0.4}; those left out have the loss's defaults.
        mixup: a mixup type, "input", "feature" or "embed", or "none".
        mix_at: with feature mixup: how many hidden layers come before what is mixed; all of them by default.
        strength: w, the weight of the mixed loss.
        batch_size: examples in a batch.
        per_class: the least number of examples of each class in a batch; with few classes, there are more.
        max_iter: steps of training.
        learning_rate: of AdamW; it falls to zero along a cosine.
        weight_decay: of AdamW.
        random_state: a seed or a `numpy.random.RandomState`; None draws one.

    Attributes:
        embedder_: the trained `metrix.Embedder`.
        classes_: the classes that it was trained on.
        loss_curve_: the loss of each step.
        n_features_in_: the length of the vectors.

    Embeddings have unit norm: neighbours by Euclidean distance are neighbours by cosine. Classes that were not seen in
    `fit` can be embedded, too.

    >>> from sklearn.datasets import load_iris
    >>> X, y = load_iris(return_X_y=True)
    >>> MetrixEmbedding(n_components=2, max_iter=5, random_state=0).fit(X, y).transform(X[:3]).shape
    (3, 2)
    """

    def __init__(
        self,
        n_components: int = 32,
        *,
        hidden: Sequence[int] = (128,),
        loss: str = "contrastive",
        loss_options: dict[str, Any] | None = None,
        mixup: str = "feature",
        mix_at: int | None = None,
        strength: float = 0.4,
        batch_size: int = 100,
        per_class: int = 5,
        max_iter: int = 200,
        learning_rate: float = 3e-3,
        weight_decay: float = 1e-4,
        random_state: int | np.random.RandomState | None = None,
    ) -> None:
        self.n_components = n_components
        self.hidden = hidden
        self.loss = loss
        self.loss_options = loss_options
        self.mixup = mixup
        self.mix_at = mix_at
        self.strength = strength
        self.batch_size = batch_size
        self.per_class = per_class
        self.max_iter = max_iter
        self.learning_rate = learning_rate
        self.weight_decay = weight_decay
        self.random_state = random_state

    def fit(self, X: Any, y: Any) -> MetrixEmbedding:
        """Train the network on vectors X (n, d) with class labels y (n,), numbers or text.

        Raises:
            InvalidInput: fewer than two classes, or parameters that do not go together; it is a ValueError.
        """
        X, y = validate_data(self, X, y, dtype=np.float32)
        check_classification_targets(y)
        self.classes_, numbers = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise InvalidInput(f"y: expected at least 2 classes, got {len(self.classes_)} class")
        steps = check_integer("max_iter", self.max_iter, least=1)
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        vectors, labels = torch.from_numpy(X), torch.from_numpy(numbers.astype(np.int64))
        draws = torch.Generator().manual_seed(seed)
        with seed_cpu(seed):  # the global random state stays as it is
            self.embedder_ = self._build_embedder(vectors)
            objective = self._build_objective(draws)
            parameters = [*self.embedder_.parameters(), *objective.parameters()]
            optimizer = torch.optim.AdamW(
                parameters,
                lr=check_number("learning_rate", self.learning_rate, above=0),
                weight_decay=check_number("weight_decay", self.weight_decay, least=0),
            )
            schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
            self.loss_curve_ = []
            for rows in self._draw_batches(labels, steps, seed):
                loss = objective.step(self.embedder_, vectors[rows], labels[rows]).loss
                optimizer.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
                schedule.step()
                self.loss_curve_.append(float(loss.detach()))
        self.embedder_.eval()
        self._n_features_out = self.n_components
        self.n_iter_ = steps
        return self

    def transform(self, X: Any) -> NDArray[np.float32]:
        """Unit embeddings (n, n_components) of vectors X (n, d)."""
        check_is_fitted(self)
        X = validate_data(self, X, dtype=np.float32, reset=False)
        with torch.inference_mode():
            found: NDArray[np.float32] = self.embedder_(torch.from_numpy(np.ascontiguousarray(X))).numpy()
        return found

    def _build_embedder(self, vectors: torch.Tensor) -> Embedder:
        embedder = Embedder(
            MLP_BACKBONE,
            self.n_components,
            pool="avg",
            inputs=vectors.shape[1],
            hidden=self.hidden,
            mix_at=self.mix_at,
        )
        embedder.standardise(vectors)
        return embedder

    def _build_objective(self, draws: torch.Generator) -> Objective:
        from metrix.train.build import build_loss, build_objective
        from metrix.train.config import Config

        options = dict(self.loss_options or {})
        if self.loss == "contrastive":
            options.setdefault("reduction", "mean_nonzero")  # sums over pairs would grow with the batch
        mixing = {} if self.mixup == "none" else {"strength": self.strength}
        config = Config().with_values(
            {"loss": self.loss, **options, "mixup": () if self.mixup == "none" else (self.mixup,), **mixing}
        )
        loss = build_loss(config.loss, len(self.classes_), self.n_components, draws)
        return build_objective(config, loss, draws)

    def _draw_batches(self, labels: torch.Tensor, steps: int, seed: int) -> Iterator[list[int]]:
        """Batches of equally many examples of as many classes as fit; classes with fewer repeat theirs."""
        per_class = check_integer("per_class", self.per_class, least=1)
        classes = min(check_integer("batch_size", self.batch_size, least=2) // per_class, len(self.classes_))
        if classes < 2:
            raise InvalidInput(
                f"batch_size: expected at least {2 * per_class} with per_class={per_class}, for 2 classes, got "
                f"{self.batch_size}"
            )
        sampler = BalancedSampler(labels, classes, self.batch_size // classes, seed=seed)
        epoch = drawn = 0
        while drawn < steps:
            sampler.set_epoch(epoch)
            for rows in sampler:
                if drawn == steps:
                    return
                drawn += 1
                yield [int(row) for row in rows]
            epoch += 1

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.required = True
        tags.transformer_tags.preserves_dtype = ["float32"]
        return tags
