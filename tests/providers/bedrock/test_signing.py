"""Signatures, against those of `botocore` over a table of requests."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

import botocore.session
import pytest
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from vibe_llms.providers.bedrock.signing import AwsIdentity, find_host, sign

KEYS = ("AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY")
TOKEN = "FwoGZXIvYXdzE/+=//token"
MOMENT = datetime(2026, 11, 28, 9, 5, 7, tzinfo=UTC)
#: Names of models of every form, as they are in a path.
NAMES = (
    "amazon.nova-lite-v1:0",
    "us.anthropic.claude-opus-5",
    "arn:aws:bedrock:us-east-1:123456789012:application-inference-profile/abc123xyz",
    "arn:aws:bedrock:us-west-2::foundation-model/anthropic.claude-3-haiku-20240307-v1:0",
    "arn:aws-us-gov:bedrock:us-gov-west-1:123456789012:inference-profile/us-gov.x.y-v1:0",
    "arn:aws:sagemaker:eu-west-1:123456789012:endpoint/my-endpoint",
    "name with spaces/é~_%2F",
)
PATHS = (
    *(f"/model/{quote(name, safe='')}/converse-stream" for name in NAMES),
    "/foundation-models",
    "/inference-profiles?maxResults=1000&nextToken=a%2Fb%3D%3D",
    "/inference-profiles?type=APPLICATION&maxResults=5&empty=&flag",
    "/gateway/model/a/converse",
    "",
)
HOSTS = (
    "https://bedrock-runtime.us-east-1.amazonaws.com",
    "https://bedrock-runtime.us-east-1.amazonaws.com:443",
    "https://gateway.example:8443",
    "http://127.0.0.1:9000",
    "http://[::1]:80",
)


def sign_officially(
    url: str, method: str, headers: Mapping[str, str], body: bytes, token: str, region: str
) -> Mapping[str, str]:
    request = AWSRequest(method, url, dict(headers), body)
    request.context["timestamp"] = MOMENT.strftime("%Y%m%dT%H%M%SZ")
    signer = SigV4Auth(Credentials(*KEYS, token or None), "bedrock", region)
    signer._modify_request_before_signing(request)
    text = signer.string_to_sign(request, signer.canonical_request(request))
    signer._inject_signature_to_request(request, signer.signature(text, request))
    return {name.lower(): value for name, value in request.headers.items()}


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("host", HOSTS)
@pytest.mark.parametrize("token", ["", TOKEN])
def test_a_signature_is_that_of_the_official_package(path: str, host: str, token: str) -> None:
    url, identity = host + path, AwsIdentity(*KEYS, token)
    for method, body in (("POST", b'{"messages":[]}'), ("GET", b""), ("POST", b"\x00\xff" * 9)):
        headers = {"Content-Type": "application/json", "x-note": "  two   words "}
        parts = [body[:5], body[5:]] if body else []
        made = sign(identity, "us-east-1", method, url, headers, parts, MOMENT)
        official = sign_officially(url, method, headers, body, token, "us-east-1")
        assert {name: official[name] for name in made} == made
        assert ("x-amz-security-token" in made) == bool(token)


@pytest.mark.parametrize("region", ["eu-central-1", "us-gov-west-1", "ap-southeast-2"])
def test_the_region_is_part_of_a_signature(region: str) -> None:
    url = HOSTS[0] + PATHS[2]
    made = sign(AwsIdentity(*KEYS), region, "POST", url, {}, [b"{}"], MOMENT)
    assert (
        made["authorization"]
        == sign_officially(url, "POST", {}, b"{}", "", region)["authorization"]
    )


def test_the_path_of_a_model_is_that_of_the_official_package() -> None:
    session = botocore.session.Session()
    client = session.create_client(
        "bedrock-runtime", "us-east-1", aws_access_key_id="a", aws_secret_access_key="b"
    )
    sent: list[Any] = []

    def stop(request: AWSRequest, **_: object) -> None:
        sent.append(request.url)
        raise ZeroDivisionError

    client.meta.events.register("before-send", stop)
    for name in NAMES[:-1]:
        with pytest.raises(ZeroDivisionError):
            client.converse(modelId=name, messages=[{"role": "user", "content": [{"text": "Hi"}]}])
        path = f"/model/{quote(name, safe='')}/converse"
        assert sent[-1] == f"https://bedrock-runtime.us-east-1.amazonaws.com{path}"


def test_an_identity_shows_no_key() -> None:
    identity = AwsIdentity(*KEYS, TOKEN)
    for text in (repr(identity), str(identity), f"{identity}"):
        assert text == "[secret]"


@pytest.mark.parametrize(
    ("url", "host"),
    [
        ("https://A.example/", "a.example"),
        ("https://a.example:443/", "a.example"),
        ("http://a.example:443/", "a.example:443"),
        ("http://[::1]:9/", "[::1]:9"),
    ],
)
def test_the_host_is_the_one_that_is_sent(url: str, host: str) -> None:
    assert find_host(url) == host
