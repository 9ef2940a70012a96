"""Logins of the web page."""

from __future__ import annotations

from pathlib import Path

import httpx2

from tests.server.conftest import Served, serving


async def test_without_keys_everyone_is_the_user_of_the_command(home: Path) -> None:
    async with serving(home, keys=False) as served:
        async with httpx2.AsyncClient(base_url=served.url) as client:
            response = await client.get("/api/session")
        assert response.json() == {
            "user": "local",
            "name": "local",
            "expires": None,
            "login": False,
        }


async def test_with_keys_a_login_is_needed(served: Served) -> None:
    async with httpx2.AsyncClient(base_url=served.url) as client:
        response = await client.get("/api/session")
        assert (response.status_code, response.json()["error"]["code"]) == (401, "invalid_api_key")
    async with served.http("ada") as client:
        response = await client.get("/api/session")
        assert response.json()["user"] == "ada"
        assert response.json()["login"] is True
