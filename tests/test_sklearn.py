"""Models that skl2onnx converts answer as scikit-learn does, through the whole path from bytes to a session."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import pytest

from mezzo.exporters import to_onnx
from mezzo.importers import load_onnx
from mezzo.runtime.graph import Graph
from mezzo.runtime.session import Session

from .models import ort_run

sklearn = pytest.importorskip("sklearn")
skl2onnx = pytest.importorskip("skl2onnx")
pytestmark = pytest.mark.filterwarnings("ignore")  # the converter's, about its own dependencies

from sklearn import ensemble, linear_model, naive_bayes, neighbors, pipeline, preprocessing, svm, tree  # noqa: E402
from sklearn.feature_extraction.text import TfidfVectorizer  # noqa: E402
from sklearn.impute import SimpleImputer  # noqa: E402

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


@dataclass(frozen=True)
class Case:
    """An estimator, what it learns, and what it is asked; `options` are the converter's."""

    name: str
    estimator: Any
    target: Any
    x: Array = field(default_factory=lambda: UNSEEN)
    options: dict[str, Any] | None = None


small = {"n_estimators": 12, "random_state": 0}
CASES = [
    Case("forest of three classes", ensemble.RandomForestClassifier(max_depth=6, **small), THREE),
    Case("forest of two classes named", ensemble.RandomForestClassifier(**small), TWO),
    Case("forest that regresses", ensemble.RandomForestRegressor(**small), TARGET),
    Case("forest of two targets", ensemble.ExtraTreesRegressor(**small), np.stack([TARGET, -(TARGET**2)], 1)),
    Case("one tree", tree.DecisionTreeClassifier(random_state=0), THREE),
    Case("boosting of three classes", ensemble.GradientBoostingClassifier(**small), THREE),
    Case("boosting of two classes", ensemble.GradientBoostingClassifier(**small), TWO),
    Case("boosting that regresses", ensemble.GradientBoostingRegressor(**small), TARGET),
    Case("isolation forest", ensemble.IsolationForest(**small), None),
    Case("machine with probabilities", svm.SVC(probability=True, random_state=0), THREE),
    Case("machine of two classes with probabilities", svm.SVC(probability=True, random_state=0, kernel="poly"), TWO),
    Case("machine without probabilities", svm.SVC(kernel="sigmoid"), THREE),
    Case("linear machine of two classes", svm.SVC(kernel="linear"), TWO),
    Case("machine that regresses", svm.SVR(), TARGET),
    Case("machine of one class", svm.OneClassSVM(nu=0.2), None),
    Case(
        "scaler and logistic regression",
        pipeline.make_pipeline(preprocessing.StandardScaler(), linear_model.LogisticRegression()),
        THREE,
    ),
    Case(
        "holes, norms and logistic regression",
        pipeline.make_pipeline(SimpleImputer(), preprocessing.Normalizer(), linear_model.LogisticRegression()),
        TWO,
        with_holes(UNSEEN),
    ),
    Case("linear regression", linear_model.Ridge(), TARGET),
    Case("neighbours", neighbors.KNeighborsClassifier(3), THREE),
    Case("naive Bayes", naive_bayes.GaussianNB(), THREE),
    Case("probabilities as dicts", linear_model.LogisticRegression(), TWO, options={"zipmap": True}),
]


def converted(model: Any, name: str, kind: Any, options: dict[str, Any] | None = None) -> bytes:
    """The bytes of the ONNX model."""
    classifies = hasattr(model, "classes_")
    chosen = options if options is not None else {"zipmap": False} if classifies else {}
    proto = skl2onnx.to_onnx(model, initial_types=[("x", kind)], options={id(model): chosen} if chosen else None,
                             name=name.replace(" ", "_"), target_opset={"": 21, "ai.onnx.ml": 3})  # fmt: skip
    made: bytes = proto.SerializeToString()
    return made


@pytest.mark.parametrize("case", [pytest.param(c, id=c.name) for c in CASES])
def test_answers_are_those_of_scikit_learn(case: Case) -> None:
    types = skl2onnx.common.data_types
    learnt = FEATURES if not np.isnan(case.x).any() else with_holes(FEATURES)
    with warnings.catch_warnings(action="ignore"):
        model = case.estimator.fit(learnt, case.target) if case.target is not None else case.estimator.fit(learnt)
        content = converted(model, case.name, types.FloatTensorType([None, 4]), case.options)
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


def test_categories() -> None:
    """One-hot encoded texts, an unknown one among what is asked."""
    words = np.array(["red", "green", "blue"], object)[RNG.integers(0, 3, (60, 2))]
    asked = np.array([["red", "blue"], ["mauve", "green"]], object)
    encoder = preprocessing.OneHotEncoder(handle_unknown="ignore")
    with warnings.catch_warnings(action="ignore"):
        model = pipeline.make_pipeline(encoder, linear_model.LogisticRegression()).fit(
            words, words[:, 0] == words[:, 1]
        )
        content = converted(model, "categories", skl2onnx.common.data_types.StringTensorType([None, 2]))
    label, shares = Session(load_onnx(content)).run({"x": asked}).values()
    np.testing.assert_array_equal(label.astype(bool), model.predict(asked))
    np.testing.assert_allclose(shares, model.predict_proba(asked), rtol=1e-4)


def test_texts() -> None:
    """TF-IDF of words and of their pairs."""
    texts = ["the red fish", "a blue fish swims", "red and blue", "no fish today", "The RED one"]
    asked = ["red red fish", "a fish today", "nothing known"]
    vectors = TfidfVectorizer(ngram_range=(1, 2))
    with warnings.catch_warnings(action="ignore"):
        model = pipeline.make_pipeline(vectors, linear_model.LogisticRegression()).fit(texts, [0, 1, 0, 1, 0])
        content = converted(model, "texts", skl2onnx.common.data_types.StringTensorType([None]))
    label, shares = Session(load_onnx(content)).run({"x": np.array(asked, object)}).values()
    np.testing.assert_array_equal(label, model.predict(asked))
    np.testing.assert_allclose(shares, model.predict_proba(asked), rtol=1e-4)
