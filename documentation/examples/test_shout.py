import asyncio

from shout_provider import ShoutProvider

from vibe_llms.testing import check_provider


def test_it_keeps_the_contract_of_providers() -> None:
    asyncio.run(check_provider(ShoutProvider, "loud"))
