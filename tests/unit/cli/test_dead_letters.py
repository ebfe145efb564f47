"""`toolscale dead-letters retry` and `clear`."""

from __future__ import annotations

import json
from collections.abc import Generator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from shared.errors import EventInvalid
from shared.intents.intents import Intents, open_intents
from shared.settings import load_settings
from tests.support.builders import changed, down, up
from toolscale.app import app
from workers.emit import Emitter, Sender
from workers.events_api.producers import Producer, ProducerRights

runner = CliRunner()


@pytest.fixture
def intents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[Intents]:
    monkeypatch.setenv("TOOLSCALE_DATA_DIR", str(tmp_path))
    monkeypatch.setenv("REDIS_URL", "")
    with closing(open_intents(load_settings())) as opened:
        opened.mark_complete()
        yield opened


def dead_letters(*arguments: str, text: str | None = None) -> Result:
    return runner.invoke(app, ["dead-letters", *arguments], input=text)


def outcomes() -> list[str]:
    return [result["outcome"] for result in json.loads(dead_letters("retry", "--json").stdout)]


def refuse(document: dict[str, Any]) -> None:
    result = runner.invoke(app, ["emit", "event", "-"], input=json.dumps(document))
    assert result.exit_code != 0


def test_an_event_that_came_too_early_is_accepted_by_a_retry_and_removed(intents: Intents) -> None:
    refuse(changed("files").model_dump(mode="json"))
    assert outcomes() == ["refused"]
    intents.record(up("files"), due_in_s=0)

    result = dead_letters("retry")

    assert "1 accepted, 0 refused, 0 incomplete" in result.stdout
    assert intents.dead_letters(10) == []
    intent = intents.intent("files")
    assert intent is not None
    assert intent.desired == 2


def test_events_are_sent_again_in_their_order_and_refused_ones_stay_as_they_were(intents: Intents) -> None:
    early = [changed("files"), up("files").model_copy(update={"id": "x" * 300}), changed("files")]
    for event in early:
        refuse(event.model_dump(mode="json"))
    before = intents.dead_letters(10)
    intents.record(up("files"), due_in_s=0)

    assert outcomes() == ["accepted", "refused", "accepted"]
    assert intents.dead_letters(10) == [before[1]]
    assert "id: " in dead_letters("retry").stdout


def test_a_retry_does_not_send_what_a_producer_may_not_send(intents: Intents) -> None:
    rights = ProducerRights(sha256="0" * 64, id_prefixes=frozenset({"ci/"}), hosts=frozenset({"h"}))
    producer = Producer("ci", rights)
    intents.record(up("work"), due_in_s=0)
    with pytest.raises(EventInvalid):
        Emitter(intents, lambda _: None, 0).accept(
            down("work").model_dump(mode="json"), Sender(producer.admit, producer.source)
        )

    result = dead_letters("retry")

    assert "'toolscale/producers/ci' is reserved" in result.stdout
    assert "0 accepted, 1 refused" in result.stdout
    assert result.exit_code == 1
    assert "toolscale/producers/ci" in dead_letters("show").stdout
    intent = intents.intent("work")
    assert intent is not None
    assert intent.status == "running"


def test_an_event_whose_body_was_cut_is_not_sent_again_and_the_command_states_it(intents: Intents) -> None:
    event = up("files").model_dump(mode="json")
    refuse(event | {"source": "x" * 20_000})

    result = dead_letters("retry")

    assert "0 accepted, 0 refused, 1 incomplete" in result.stdout
    assert "the body was cut when it was stored" in result.stdout
    assert len(intents.dead_letters(10)) == 1


def test_letters_are_cleared_after_a_confirmation_or_with_yes(intents: Intents) -> None:
    for number in range(3):
        intents.add_dead_letter("refused", str(number))

    declined = dead_letters("clear", text="n\n")
    assert (declined.exit_code, len(intents.dead_letters(10))) == (1, 3)
    assert "3 dead letters are deleted." in dead_letters("clear", text="y\n").stdout
    intents.add_dead_letter("refused", "again")
    assert json.loads(dead_letters("clear", "--yes", "--json").stdout) == {"deleted": 1}
    assert "There are no dead letters." in dead_letters("retry").stdout
