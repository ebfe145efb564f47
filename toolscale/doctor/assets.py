"""Files that work offline: the embedding model and the vocabularies."""

from __future__ import annotations

from collections.abc import Iterator

from shared.catalog import ENCODINGS
from shared.errors import AssetInvalid, ConfigInvalid, CountFailed, ModelUnavailable
from shared.settings import Settings
from shared.text import BUNDLED_MODEL
from shared.text.embedding import FastEmbedder
from shared.text.tokens import counter
from toolscale.doctor.finding import Finding, ok, problem

_INSTALL_AGAIN = "install Toolscale again, or in a clone run `git checkout shared/assets`"


def check_model(settings: Settings) -> Iterator[Finding]:
    """Check that the model embeds a text."""
    model = settings.embedding_model
    try:
        dimension = len(FastEmbedder(model).query("ready"))
    except (ModelUnavailable, ConfigInvalid) as error:
        fetched = "check the connection to the model hub, or set TOOLSCALE_EMBEDDING_MODEL to another model"
        yield problem("model", str(error), _INSTALL_AGAIN if model == BUNDLED_MODEL else fetched)
        return
    yield ok("model", f"{model}, {dimension} dimensions")


def check_vocabularies(settings: Settings) -> Iterator[Finding]:  # noqa: ARG001  # no setting changes them
    """Check that tokens can be counted in every encoding."""
    for encoding in ENCODINGS:
        try:
            counter(encoding)("ready")
        except (AssetInvalid, CountFailed) as error:
            yield problem("vocabularies", str(error), _INSTALL_AGAIN)
            return
    yield ok("vocabularies", ", ".join(ENCODINGS))
