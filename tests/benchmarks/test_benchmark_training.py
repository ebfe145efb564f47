"""Training of the model. The tests of the network itself need JAX, which is not in the project's environment."""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from benchmarks.command import RESULTS
from benchmarks.quantisation.network import Weights, read_weights, vector, write_weights
from benchmarks.retrieval.data import CorpusServer, definition, read_run, write_run
from benchmarks.retrieval.results import Score
from benchmarks.training.data import MISSING, Data, filled, read_data, rows, tokens_of, write_data
from benchmarks.training.evaluation import CHOOSING, GUARDS, OWN, TrainedModel, mean, shortened
from benchmarks.training.packing import PLACES, ROWS, packed
from benchmarks.training.report import Results, changed, render
from benchmarks.training.sampling import Base, Batch, Sampler, closeness, masked, nearest
from benchmarks.training.texts import as_data, descriptions, read_requests
from shared.catalog import Listing
from shared.text.embedding import bundled_model
from tests.support.tiny_training import tiny_data, tiny_weights

BATCH = 16
CHOICES = ("model-v1", "model")


def unit(count: int, seed: int) -> Any:
    """Return random unit rows of four channels."""
    values = np.random.default_rng(seed).normal(size=(count, 4)).astype(np.float32)
    return values / np.linalg.norm(values, axis=1, keepdims=True)


def random_base(data: Data) -> Base:
    return Base(unit(len(data.queries), 0), unit(len(data.names), 1), unit(len(data.texts), 2))


def sampler(seed: int = 0, weights: Mapping[str, float] | None = None) -> Sampler:
    data = tiny_data()
    return Sampler(data, random_base(data), BATCH, seed, weights or {})


# Data


def test_a_long_text_is_cut_and_keeps_its_closing_token() -> None:
    found = rows([[101, 7, 8, 9, 102], [101, 102]], 4)

    assert found.tolist() == [[101, 7, 8, 102], [101, 102, 0, 0]]
    assert tokens_of(found) == [[101, 7, 8, 102], [101, 102]]


def test_data_is_read_as_it_was_written(tmp_path: Path) -> None:
    write_data(tiny_data(), tmp_path / "data.npz")

    found = read_data(tmp_path / "data.npz")

    assert found.relevant.tolist() == tiny_data().relevant.tolist()
    assert found.styles.tolist() == tiny_data().styles.tolist()


def test_requests_and_tools_become_the_tokens_of_the_product(tmp_path: Path) -> None:
    tool = {"server": "weather", "name": "getForecast", "description": "Tomorrow.", "inputSchema": {"type": "object"}}
    other = {**tool, "name": "getAlerts"}
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text("".join(json.dumps(line) + "\n" for line in (other, tool)))
    request = {"query": "will it rain", "relevant": [{"server": "weather", "name": "getForecast"}], "style": "task"}

    found = as_data([request], corpus)

    assert found.relevant.tolist() == [[1]]
    assert found.servers.tolist() == [0, 0]
    tokenizer = Tokenizer.from_file(str(bundled_model() / "tokenizer.json"))
    tokenizer.no_padding()
    assert tokens_of(found.names)[1] == tokenizer.encode("weather: get Forecast").ids
    assert tokens_of(found.texts)[1] == tokenizer.encode("get Forecast: Tomorrow.").ids


def test_descriptions_of_tools_and_parameters_are_read_once_at_any_depth(tmp_path: Path) -> None:
    inner = {"type": "object", "properties": {"day": {"description": "A day."}}}
    schema = {"type": "object", "properties": {"days": {"items": [inner, inner], "description": "Tomorrow."}}}
    tool = {"server": "weather", "name": "getForecast", "description": "Tomorrow.", "inputSchema": schema}
    (tmp_path / "corpus.jsonl").write_text(json.dumps(tool) + "\n")

    assert descriptions(tmp_path / "corpus.jsonl") == ["A day.", "Tomorrow."]


def test_a_request_for_a_tool_outside_the_corpus_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "corpus.jsonl").write_text("")

    with pytest.raises(KeyError):
        as_data(
            [{"query": "q", "relevant": [{"server": "a", "name": "b"}], "style": "task"}], tmp_path / "corpus.jsonl"
        )


def test_each_request_is_whole_and_none_repeats() -> None:
    requests = read_requests()

    assert all(request["query"].strip() and request["relevant"] and request["style"] for request in requests)
    assert len({request["query"] for request in requests}) > 0.99 * len(requests)


# Batches


def test_the_same_seed_draws_the_same_batches() -> None:
    first, again, other = ([batch.tools.tolist() for batch in sampler(seed).epoch()] for seed in (1, 1, 2))

    assert first == again
    assert first != other


def test_a_request_is_drawn_once_in_an_epoch_with_one_of_its_tools_as_positive() -> None:
    batches = list(sampler().epoch())

    drawn = np.concatenate([batch.queries for batch in batches])
    assert len(drawn) == len(set(drawn.tolist())) == len(tiny_data().queries) // BATCH * BATCH
    assert all(np.array_equal(batch.tools[:BATCH], tiny_data().relevant[batch.queries, 0]) for batch in batches)


def test_half_of_the_hard_negatives_are_siblings_and_none_is_a_positive() -> None:
    data = tiny_data()

    for batch in sampler().epoch():
        positives, hard = batch.tools[:BATCH], batch.tools[BATCH:]
        assert np.array_equal(data.servers[hard[::2]], data.servers[positives[::2]])
        assert np.all(hard != positives)


def test_styles_count_by_their_weights() -> None:
    (batch, *_) = sampler(weights={"hard": 3.0}).epoch()

    hard = tiny_data().styles[batch.queries] == "hard"
    assert batch.weights[hard].mean() == pytest.approx(3 * batch.weights[~hard].mean())
    assert batch.weights.mean() == pytest.approx(1.0)


@given(st.lists(st.lists(st.integers(0, 11), min_size=1, max_size=3, unique=True), min_size=2, max_size=6), st.data())
def test_positives_and_their_near_duplicates_are_no_negatives(wanted: list[list[int]], drawn: st.DataObject) -> None:
    texts = np.repeat(unit(6, 3), 2, axis=0)  # each tool has an equal neighbour
    columns = [own[0] for own in wanted] + drawn.draw(st.lists(st.integers(0, 11), max_size=6))

    found = masked(filled(wanted, 3, MISSING), np.array(columns, dtype=np.int32), texts)

    for row, own in enumerate(wanted):
        for column, tool in enumerate(columns):
            is_close = any(float(texts[tool] @ texts[positive]) > 0.9 for positive in own)
            assert found[row, column] == (column != row and (tool in own or is_close))


def test_the_nearest_tools_are_those_of_the_highest_closeness_without_the_positives() -> None:
    data = tiny_data()
    base = random_base(data)

    found = nearest(data, base)

    scores = closeness(base.queries @ base.names.T, base.queries @ base.texts.T)
    scores[np.arange(len(scores)), data.relevant[:, 0]] = -np.inf
    assert all(set(own) == set((-row).argsort()[: len(own)]) for own, row in zip(found.tolist(), scores, strict=True))


@given(st.lists(st.integers(1, PLACES), min_size=1, max_size=24))
def test_each_text_is_in_one_row_in_its_order(lengths: list[int]) -> None:
    texts = [list(range(1, length + 1)) for length in lengths]

    tokens, positions, owners = packed(texts)

    assert len(owners) % ROWS == 0
    for number, text in enumerate(texts):
        assert len(set(np.argwhere(owners == number)[:, 0])) == 1
        assert tokens[owners == number].tolist() == text
        assert positions[owners == number].tolist() == list(range(len(text)))
    assert not tokens[owners < 0].any()


def test_texts_fill_the_rows() -> None:
    """Sixty texts of 20 tokens need 20 rows of 64 places."""
    owners = packed([[1] * 20] * 60).owners

    assert (owners >= 0).any(axis=1).sum() == 20


# Weights


def test_an_average_is_between_both_and_leaves_equal_tensors_as_they_are() -> None:
    averaged = learning().averaged
    base = {"a": np.array([0.1, 0.2], np.float32), "b": np.array([0.3], np.float32)}
    trained = {"a": np.array([1.1, 0.2], np.float32), "b": base["b"]}

    found = averaged(base, trained, 0.5)

    assert found["a"] == pytest.approx([0.6, 0.2])
    assert found["b"].tobytes() == base["b"].tobytes()
    assert averaged(base, trained, 1.0)["a"] == pytest.approx(trained["a"])


def test_a_mixture_is_the_mean_of_its_runs() -> None:
    mixed = learning().mixed
    runs = [{"a": np.array([value, 1.0], np.float32)} for value in (1.0, 2.0, 6.0)]

    assert mixed(runs)["a"].tolist() == [3.0, 1.0]


def test_weights_are_read_as_they_were_written(tmp_path: Path) -> None:
    weights = tiny_weights(tmp_path)

    write_weights(weights, tmp_path / "again.safetensors")

    again = read_weights(tmp_path / "again.safetensors")
    assert list(again) == list(weights)
    assert all(again[name].tobytes() == values.tobytes() for name, values in weights.items())


# The choice


def test_the_mean_of_a_choice_is_over_its_sets_alone() -> None:
    scores = {name: _score(60.0, 80.0) for name in CHOOSING} | {name: _score(0.0, 0.0) for name in GUARDS}

    assert mean(scores) == 70.0
    assert mean({OWN.name: _score(1.0, 1.0)}) is None


def test_a_trained_model_is_read_from_its_directory() -> None:
    model = TrainedModel(bundled_model())

    assert model.query("rain tomorrow") @ model.passages(["rain tomorrow"])[0] == pytest.approx(1.0)


def _score(at_5: float, at_10: float) -> Score:
    return Score(recall_at_5=at_5, recall_at_8=at_10, recall_at_10=at_10, interval_at_5=(0, 0), interval_at_10=(0, 0))


def test_a_change_is_the_mean_of_paired_differences_with_its_interval() -> None:
    before, after = np.array([0.0, 100.0, 50.0] * 30), np.array([100.0, 100.0, 50.0] * 30)

    found = changed("own_dev", 5, before, after)

    assert (found.before, found.after, found.difference) == (50.0, 83.3, 33.3)
    assert found.interval[0] < 33.3 < found.interval[1]
    assert changed("own_dev", 5, after, after).interval == (0.0, 0.0)


@pytest.mark.parametrize("name", [*CHOICES, "model-depths"])
def test_the_kept_report_of_a_choice_is_the_one_that_its_numbers_give(name: str) -> None:
    results = Results.model_validate_json((RESULTS / f"{name}.json").read_bytes())

    assert (RESULTS / f"{name}.md").read_text(encoding="utf-8") == render(results)


@pytest.mark.parametrize("name", CHOICES)
def test_the_chosen_model_has_the_highest_mean(name: str) -> None:
    results = Results.model_validate_json((RESULTS / f"{name}.json").read_bytes())

    means = {name: mean(scores) or 0 for name, scores in results.candidates.items()}
    assert max(means, key=lambda name: means[name]) == results.chosen


def test_a_run_is_read_as_it_was_written(tmp_path: Path) -> None:
    run = {"q1": [("clock", "get_time"), ("git", "log")], "q2": []}

    write_run(tmp_path / "run.jsonl", run)

    assert read_run(tmp_path / "run.jsonl") == run


# The network


def test_the_network_returns_the_vectors_of_the_reference(tmp_path: Path) -> None:
    network = pytest.importorskip("benchmarks.training.network", reason="needs JAX", exc_type=ImportError)
    weights, texts = tiny_weights(tmp_path), tokens_of(tiny_data().texts[:9])

    found = network.vectors(weights, texts)

    cosines = [float(row @ vector(weights, own)) for row, own in zip(found, texts, strict=True)]
    assert len(packed(texts).tokens) < len(texts)
    assert min(cosines) > 0.99999


@pytest.fixture
def learnt(tmp_path: Path) -> tuple[Weights, Weights, list[Any]]:
    """The weights before and after a training, and its figures."""
    learning()
    return tiny_weights(tmp_path), *_trained(tmp_path)


def test_the_loss_falls(learnt: tuple[Weights, Weights, list[Any]]) -> None:
    losses = [step.loss for step in learnt[2]]

    assert 0 < np.mean(losses[-5:]) < 0.5 * np.mean(losses[:5])


def test_training_changes_each_tensor_of_the_layers_and_no_other(
    learnt: tuple[Weights, Weights, list[Any]],
) -> None:
    base, trained, _ = learnt

    changed = {name for name in base if trained[name].tobytes() != base[name].tobytes()}

    # A key's bias moves all scores of a query equally: it has no gradient, only noise.
    keys = {f"encoder.layer.{number}.attention.self.key.bias" for number in range(2)}
    assert changed | keys == {name for name in base if name.startswith("encoder.layer.")}


def test_the_same_seed_trains_the_same_bytes(learnt: tuple[Weights, Weights, list[Any]], tmp_path: Path) -> None:
    again, _ = _trained(tmp_path / "again")

    assert all(again[name].tobytes() == values.tobytes() for name, values in learnt[1].items())


def test_a_masked_column_does_not_change_the_loss(tmp_path: Path) -> None:
    weights, data = tiny_weights(tmp_path), tiny_data()
    (batch, *_) = Sampler(data, random_base(data), BATCH, 0, {}).epoch()
    hidden = batch.masked.copy()
    hidden[:, -1] = True
    tools = batch.tools.copy()
    tools[-1] = tools[0]

    batches = [Batch(batch.queries, own, hidden, batch.weights) for own in (batch.tools, tools)]
    before, after = (float(learning().loss(weights, {}, learning().arrays(data, own))) for own in batches)

    assert before == pytest.approx(after, rel=1e-6)


def test_an_exported_model_returns_the_vectors_of_the_trained_weights(
    learnt: tuple[Weights, Weights, list[Any]], tmp_path: Path
) -> None:
    export = pytest.importorskip("benchmarks.training.export", reason="needs onnx", exc_type=ImportError)
    network = pytest.importorskip("benchmarks.training.network", reason="needs JAX", exc_type=ImportError)
    texts = tokens_of(tiny_data().texts)

    figures = export.exported(learnt[1], tmp_path, texts)

    found = export.vectors(tmp_path / "float32.onnx", texts)
    assert np.abs(found - network.vectors(learnt[1], texts)).max() < 1e-5
    assert figures["cosine_to_float32"]["lowest"] > 0.99
    assert figures["largest_difference_by_batch"] < 1e-5


# Distillation


def test_a_shallower_network_has_the_chosen_layers_in_their_order(tmp_path: Path) -> None:
    weights = tiny_weights(tmp_path)

    found = distillation().shallower(weights, [1])

    layer = {name.replace(".1.", ".0."): own for name, own in weights.items() if name.startswith("encoder.layer.1.")}
    kept = {name: own for name, own in weights.items() if not name.startswith("encoder.layer.")}
    assert found.keys() == (layer | kept).keys()
    assert all(found[name] is own for name, own in (layer | kept).items())


PIECES = [[101, *range(start, start + length), 102] for start, length in ((200, 1), (300, 7), (400, 30))]


@pytest.mark.parametrize("joined", [0.0, 1.0])
def test_a_drawn_text_is_a_piece_or_the_end_of_a_piece_before_others(
    joined: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = [token for piece in PIECES for token in piece[1:-1]]
    starts, ends = ({stream.index(piece[place]) for piece in PIECES} for place in (1, -2))

    texts = _drawn_texts(monkeypatch, JOINED=joined, FOREIGN=0.0)

    assert {text[0] for text in texts} == {101}
    assert {text[-1] for text in texts} == {102}
    if not joined:
        assert {tuple(text) for text in texts} == {
            (*piece[:15], 102) if len(piece) > 16 else (*piece,) for piece in PIECES
        }
        return
    assert {len(text) for text in texts} == set(range(4, 17))
    for before, after in (pair for text in texts for pair in pairwise(map(stream.index, text[1:-1]))):
        # the last token of all repeats
        assert after == before + 1 or (before in ends and after in starts) or before == after == len(stream) - 1


def test_foreign_words_replace_less_than_a_third_of_a_text(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = _drawn_texts(monkeypatch, JOINED=0.0, FOREIGN=1.0)

    own = {token for piece in PIECES for token in piece}
    foreign = [token not in own for text in texts for token in text[1:-1]]
    assert 0.05 < np.mean(foreign) < 0.3


def test_a_shallower_network_learns_the_vectors_of_its_teacher(tmp_path: Path) -> None:
    teacher, data = tiny_weights(tmp_path), tiny_data()
    student = distillation().shallower(teacher, [1])
    pieces = distillation().pieces(tokens_of(data.queries), tokens_of(data.pieces))

    found, figures = distillation().distilled(student, teacher, pieces, distillation().Schedule(100, 1e-2, 0, 512))

    network = pytest.importorskip("benchmarks.training.network", reason="needs JAX", exc_type=ImportError)
    texts = tokens_of(data.texts)
    before, after = (
        (network.vectors(own, texts) * network.vectors(teacher, texts)).sum(axis=1) for own in (student, found)
    )
    assert 0 < figures[-1].loss < 0.5 * figures[0].loss
    assert 1 - after.mean() < 0.5 * (1 - before.mean())
    assert {name for name in student if found[name] is student[name]} == {
        name for name in student if not name.startswith("encoder.layer.")
    }


def _drawn_texts(monkeypatch: pytest.MonkeyPatch, **shares: float) -> list[list[int]]:
    """Return 300 texts in rows of 16 places, with these shares."""
    module = distillation()
    for name, share in shares.items():
        monkeypatch.setattr(module, name, share)
    rows = module.drawn(module.jax.random.key(0), module.pieces(PIECES[:1], PIECES[1:]), (300, 16), 30_000)
    return [row[owners >= 0].tolist() for row, owners in zip(map(np.asarray, rows.tokens), rows.owners, strict=True)]


def distillation() -> Any:
    """Return the module of the distillation, which needs the packages of the training environment."""
    return pytest.importorskip("benchmarks.training.distillation", reason="needs JAX", exc_type=ImportError)


def learning() -> Any:
    """Return the module of the training, which needs the packages of the training environment."""
    return pytest.importorskip("benchmarks.training.learning", reason="needs JAX", exc_type=ImportError)


def _trained(directory: Path) -> tuple[Weights, list[Any]]:
    directory.mkdir(exist_ok=True)
    weights, data = tiny_weights(directory), tiny_data()
    sampler = Sampler(data, learning().base_vectors(weights, data), BATCH, 0, {})
    batches = (batch for _ in range(5) for batch in sampler.epoch())
    trained, figures = learning().trained(weights, data, batches, 30, 1e-3)
    return trained, figures


def test_the_shorter_form_of_a_server_has_the_same_tools_and_fewer_titles() -> None:
    schema = {"type": "object", "properties": {"repo_path": {"type": "string", "title": "Repo Path"}}}
    tool = definition({"server": "git", "name": "log", "description": "Show commits", "inputSchema": schema})

    (shorter,) = shortened(CorpusServer("server-0", "git", Listing("git", "2026-07-28", (tool,)))).listing.tools

    assert shorter.name == "log"
    assert "Repo Path" in tool.wire
    assert "Repo Path" not in shorter.wire
