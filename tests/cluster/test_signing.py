"""Signatures, and the keys that the environment gives."""

import pytest

from kfit.cluster.signing import key_from, signature


def test_a_signature_depends_on_the_secret_and_the_content() -> None:
    made = {signature(secret, content) for secret in (b"", b"s") for content in (b"", b"c")}
    assert len(made) == 4


def test_a_key_is_that_of_the_environment_or_empty() -> None:
    assert key_from("A_KEY", {}) == key_from("A_KEY", {"A_KEY": ""}) == b""
    assert key_from("A_KEY", {"A_KEY": "0123456789abcdef"}) == b"0123456789abcdef"


def test_a_key_that_can_be_guessed_is_refused() -> None:
    with pytest.raises(ValueError, match="`A_KEY` has 15 characters; expected at least 16"):
        key_from("A_KEY", {"A_KEY": "0123456789abcde"})
