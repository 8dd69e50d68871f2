"""The Hugging Face hub, where there is none: known within seconds, and what was fetched before is used."""

from collections.abc import Iterator
from contextlib import contextmanager

from huggingface_hub import constants
from huggingface_hub.errors import LocalEntryNotFoundError, OfflineModeIsEnabled
from huggingface_hub.utils import get_session

CONNECT_SECONDS = 5.0  # to a hub that can be reached at all; slow ones may take longer to answer
NOT_IN_CACHE = (LocalEntryNotFoundError, OfflineModeIsEnabled)
NO_CONNECTION = ("ConnectError", "ConnectTimeout", "ConnectionError", "ProxyError")  # of any version's client


@contextmanager
def hub_or_cache() -> Iterator[str | None]:
    """Within the block the hub's client uses its cache only, if the hub cannot be reached; gives the reason, or None.

    The client itself would ask for every file five more times, which takes most of a minute.
    """
    reason = None if constants.HF_HUB_OFFLINE else no_connection()
    before = constants.HF_HUB_OFFLINE
    constants.HF_HUB_OFFLINE = before or reason is not None
    try:
        yield reason
    finally:
        constants.HF_HUB_OFFLINE = before


def no_connection() -> str | None:
    """Why no connection to the hub comes about; None if one does, whatever the hub answers then."""
    try:
        get_session().head(constants.ENDPOINT, timeout=CONNECT_SECONDS)
    except Exception as error:  # clients of several versions have their own
        if {kind.__name__ for kind in type(error).__mro__} & set(NO_CONNECTION):
            told = (str(error).strip() or type(error).__name__).splitlines()[0]
            return f"no connection to {constants.ENDPOINT}: {told}"
    return None
