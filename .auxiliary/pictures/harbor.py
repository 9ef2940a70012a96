"""Tools of the pictures' home: a forecast, and a berth whose booking asks first."""

from vibe_llms import FunctionEnsemble
from vibe_llms.conversations.hosts import register_ensemble

harbor = FunctionEnsemble("harbor")


@harbor.register(approval="allow")
def forecast(place: str, day: str) -> str:
    """Return the wind of a day."""
    return f"{place}, {day}: west 4, in the evening 6; waves 1.2 m; no rain"


@harbor.register(approval="ask")
def book_berth(harbor: str, arrival: str, nights: int, boat: str) -> str:
    """Book a berth, which costs money."""
    return f"berth 12 in {harbor} from {arrival} for {nights} nights, for {boat}"


register_ensemble("harbor", lambda _name, _configuration: harbor)
