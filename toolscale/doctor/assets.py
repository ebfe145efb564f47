"""Files that work offline: the embedding model and the vocabularies."""

from __future__ import annotations

from collections.abc import Iterator

from shared.catalog import ENCODINGS
from shared.errors import AssetInvalid, ConfigInvalid, ModelUnavailable
from shared.settings import Settings
from shared.text import BUNDLED_MODEL
from shared.text.embedding import FastEmbedder
from shared.text.tokens import VOCABULARIES, bundled_vocabularies, check_vocabulary
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
    """Check that the vocabulary of every encoding is the one that tiktoken expects; loading them takes 0.3 s."""
    try:
        for name in VOCABULARIES:
            check_vocabulary(name, bundled_vocabularies())
    except AssetInvalid as error:
        yield problem("vocabularies", str(error), _INSTALL_AGAIN)
        return
    yield ok("vocabularies", ", ".join(ENCODINGS))
