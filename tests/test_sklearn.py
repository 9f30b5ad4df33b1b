"""Models that skl2onnx converts answer as scikit-learn does, through the whole path from bytes to a session."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import pytest

from mezzo.exporters import to_onnx
from mezzo.importers import load_onnx
from mezzo.runtime.execution.session import Session
from mezzo.runtime.ir.graph import Graph

from .models import ort_run
from .peers import peer

pytestmark = pytest.mark.filterwarnings("ignore")  # the converter's, about its own dependencies

Array = np.ndarray[Any, Any]
RNG = np.random.default_rng(0)
FEATURES = RNG.normal(size=(150, 4)).astype(np.float32)
THREE = np.array([3, 5, 9])[np.argmax(FEATURES[:, :3] + 0.3 * RNG.normal(size=(150, 3)), 1)]
TWO = np.where(FEATURES[:, 0] + FEATURES[:, 1] ** 2 > 0.8, "yes", "no")
TARGET = FEATURES[:, 0] * 2 + np.sin(3 * FEATURES[:, 1]) + 0.1 * RNG.normal(size=150)
UNSEEN = RNG.normal(size=(40, 4)).astype(np.float32)


def with_holes(x: Array) -> Array:
    """The features with some missing."""
    holed = x.copy()
    holed[::5, 1] = np.nan
    holed[1::7, 2] = np.nan
    return holed


class Sklearn:
    """scikit-learn's modules by name, and its converter."""

    def __init__(self) -> None:
        self.convert = peer("skl2onnx")

    def __getattr__(self, name: str) -> Any:
        return peer(f"sklearn.{name}")


@pytest.fixture(scope="module")
def sklearn() -> Sklearn:
    peer("sklearn")
    return Sklearn()


@dataclass(frozen=True)
class Case:
    """An estimator, made of scikit-learn's modules, what it learns, and what it is asked; `options` are the
    converter's."""

    name: str
    estimator: Callable[[Any], Any]
    target: Any
    x: Array = field(default_factory=lambda: UNSEEN)
    options: dict[str, Any] | None = None


small = {"n_estimators": 12, "random_state": 0}
CASES = [
    Case("forest of three classes", lambda s: s.ensemble.RandomForestClassifier(max_depth=6, **small), THREE),
    Case("forest of two classes named", lambda s: s.ensemble.RandomForestClassifier(**small), TWO),
    Case("forest that regresses", lambda s: s.ensemble.RandomForestRegressor(**small), TARGET),
    Case(
        "forest of two targets", lambda s: s.ensemble.ExtraTreesRegressor(**small), np.stack([TARGET, -(TARGET**2)], 1)
    ),
    Case("one tree", lambda s: s.tree.DecisionTreeClassifier(random_state=0), THREE),
    Case("boosting of three classes", lambda s: s.ensemble.GradientBoostingClassifier(**small), THREE),
    Case("boosting of two classes", lambda s: s.ensemble.GradientBoostingClassifier(**small), TWO),
    Case("boosting that regresses", lambda s: s.ensemble.GradientBoostingRegressor(**small), TARGET),
    Case("isolation forest", lambda s: s.ensemble.IsolationForest(**small), None),
    Case("machine with probabilities", lambda s: s.svm.SVC(probability=True, random_state=0), THREE),
    Case(
        "machine of two classes with probabilities",
        lambda s: s.svm.SVC(probability=True, random_state=0, kernel="poly"),
        TWO,
    ),
    Case("machine without probabilities", lambda s: s.svm.SVC(kernel="sigmoid"), THREE),
    Case("linear machine of two classes", lambda s: s.svm.SVC(kernel="linear"), TWO),
    Case("machine that regresses", lambda s: s.svm.SVR(), TARGET),
    Case("machine of one class", lambda s: s.svm.OneClassSVM(nu=0.2), None),
    Case(
        "scaler and logistic regression",
        lambda s: s.pipeline.make_pipeline(s.preprocessing.StandardScaler(), s.linear_model.LogisticRegression()),
        THREE,
    ),
    Case(
        "holes, norms and logistic regression",
        lambda s: s.pipeline.make_pipeline(
            s.impute.SimpleImputer(), s.preprocessing.Normalizer(), s.linear_model.LogisticRegression()
        ),
        TWO,
        with_holes(UNSEEN),
    ),
    Case("linear regression", lambda s: s.linear_model.Ridge(), TARGET),
    Case("neighbours", lambda s: s.neighbors.KNeighborsClassifier(3), THREE),
    Case("naive Bayes", lambda s: s.naive_bayes.GaussianNB(), THREE),
    Case("probabilities as dicts", lambda s: s.linear_model.LogisticRegression(), TWO, options={"zipmap": True}),
]


def converted(sklearn: Sklearn, model: Any, name: str, kind: Any, options: dict[str, Any] | None = None) -> bytes:
    """The bytes of the ONNX model."""
    classifies = hasattr(model, "classes_")
    chosen = options if options is not None else {"zipmap": False} if classifies else {}
    proto = sklearn.convert.to_onnx(model, initial_types=[("x", kind)], options={id(model): chosen} if chosen else None,
                             name=name.replace(" ", "_"), target_opset={"": 21, "ai.onnx.ml": 3})  # fmt: skip
    made: bytes = proto.SerializeToString()
    return made


@pytest.mark.parametrize("case", [pytest.param(c, id=c.name) for c in CASES])
def test_answers_are_those_of_scikit_learn(case: Case, sklearn: Sklearn) -> None:
    types = sklearn.convert.common.data_types
    learnt = FEATURES if not np.isnan(case.x).any() else with_holes(FEATURES)
    with warnings.catch_warnings(action="ignore"):
        estimator = case.estimator(sklearn)
        model = estimator.fit(learnt, case.target) if case.target is not None else estimator.fit(learnt)
        content = converted(sklearn, model, case.name, types.FloatTensorType([None, 4]), case.options)
        predicted = model.predict(case.x)
        shares = model.predict_proba(case.x) if hasattr(model, "predict_proba") else None
    graph = load_onnx(content)
    survives_export(graph, content, {"x": case.x})
    session = Session(graph)
    for rows in (len(case.x), 1):
        got = list(session.run({"x": case.x[:rows]}).values())
        label = got[0].reshape(predicted[:rows].shape)
        if label.dtype.kind == "f":
            np.testing.assert_allclose(label, predicted[:rows], rtol=1e-4, atol=1e-5)
        else:
            np.testing.assert_array_equal(label, predicted[:rows])
        if shares is not None and case.options:
            assert list(got[1][0]) == list(model.classes_)
            got[1] = np.array([list(row.values()) for row in got[1]])
        if shares is not None:
            np.testing.assert_allclose(got[1], shares[:rows], rtol=1e-4, atol=1e-5)


def survives_export(graph: Graph, content: bytes, feeds: dict[str, Array]) -> None:
    """What is exported again is sound, and answers in ONNX Runtime as the file did."""
    again = to_onnx(graph)
    onnx.checker.check_model(again)  # not its inference: the converter declares one target where there are two
    for got, like in zip(ort_run(again, feeds).values(), ort_run(content, feeds).values(), strict=True):
        if isinstance(like, list):
            assert [list(row) for row in got] == [list(row) for row in like]
            got, like = (np.array([list(row.values()) for row in rows]) for rows in (got, like))
        if like.dtype.kind == "f":
            np.testing.assert_allclose(got, like, rtol=1e-5, atol=1e-6)
        else:
            np.testing.assert_array_equal(got, like)


def test_categories(sklearn: Sklearn) -> None:
    """One-hot encoded texts, an unknown one among what is asked."""
    words = np.array(["red", "green", "blue"], object)[RNG.integers(0, 3, (60, 2))]
    asked = np.array([["red", "blue"], ["mauve", "green"]], object)
    encoder = sklearn.preprocessing.OneHotEncoder(handle_unknown="ignore")
    with warnings.catch_warnings(action="ignore"):
        model = sklearn.pipeline.make_pipeline(encoder, sklearn.linear_model.LogisticRegression()).fit(
            words, words[:, 0] == words[:, 1]
        )
        content = converted(sklearn, model, "categories", sklearn.convert.common.data_types.StringTensorType([None, 2]))
    label, shares = Session(load_onnx(content)).run({"x": asked}).values()
    np.testing.assert_array_equal(label.astype(bool), model.predict(asked))
    np.testing.assert_allclose(shares, model.predict_proba(asked), rtol=1e-4)


def test_texts(sklearn: Sklearn) -> None:
    """TF-IDF of words and of their pairs."""
    texts = ["the red fish", "a blue fish swims", "red and blue", "no fish today", "The RED one"]
    asked = ["red red fish", "a fish today", "nothing known"]
    vectors = sklearn.feature_extraction.text.TfidfVectorizer(ngram_range=(1, 2))
    with warnings.catch_warnings(action="ignore"):
        model = sklearn.pipeline.make_pipeline(vectors, sklearn.linear_model.LogisticRegression()).fit(
            texts, [0, 1, 0, 1, 0]
        )
        content = converted(sklearn, model, "texts", sklearn.convert.common.data_types.StringTensorType([None]))
    label, shares = Session(load_onnx(content)).run({"x": np.array(asked, object)}).values()
    np.testing.assert_array_equal(label, model.predict(asked))
    np.testing.assert_allclose(shares, model.predict_proba(asked), rtol=1e-4)
