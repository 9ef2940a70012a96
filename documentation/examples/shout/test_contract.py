import asyncio
import threading

from vibe_llms_shout import ShoutProvider

from server import Server, Shouter
from vibe_llms.testing import check_provider


def test_it_keeps_the_contract_of_providers() -> None:
    with Server(("127.0.0.1", 0), Shouter) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}"
        asyncio.run(check_provider(ShoutProvider, "loud", settings={"base-url": address}))
        server.shutdown()
