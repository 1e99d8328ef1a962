"""Translate s3fs options, AWS environment variables and AWS configuration files for obstore.

For a description of these variables and files, see the botocore documentation.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request as HttpRequest
from urllib.request import urlopen

_OPTIONS = {"key", "secret", "token", "anon", "requester_pays", "endpoint_url", "profile"}
_OPTIONS_OF_CLIENT = {"endpoint_url", "region_name"}
_FILES = {
    "AWS_CONFIG_FILE": "~/.aws/config",
    "AWS_SHARED_CREDENTIALS_FILE": "~/.aws/credentials",
}
_PROFILES = ("AWS_PROFILE", "AWS_DEFAULT_PROFILE")
_ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")
_CREDENTIALS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
# Environment variables that this module handles, or that botocore uses to find credentials.
_VARIABLES = {
    *_FILES,
    *_PROFILES,
    *_ENDPOINTS,
    *_CREDENTIALS,
    "AWS_DEFAULT_REGION",
    "AWS_REGION",  # ignored by botocore
    "AWS_EC2_METADATA_DISABLED",
    "AWS_ROLE_ARN",
    "AWS_ROLE_SESSION_NAME",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
    "AWS_CONTAINER_AUTHORIZATION_TOKEN",
    "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE",
    "AWS_CA_BUNDLE",  # handled in `clients`
    "AWS_CREDENTIAL_EXPIRATION",
    "AWS_EXECUTION_ENV",
    "AWS_PAGER",
}
# Keys of an AWS profile that set credentials or the region, or affect only the AWS CLI.
_KEYS = {"region", "output", "cli_pager", "credential_source", "credential_process"}
_PREFIXES_OF_KEYS = ("aws_", "role_", "sso_", "source_profile", "web_identity_token_file", "mfa_")
_LIFETIME = timedelta(minutes=5)


class NoEquivalentError(Exception):
    """The error raised if obstore cannot be used in the same way as fsspec."""


@dataclass(frozen=True)
class StaticCredentials:
    """A credential provider for obstore that always returns the same credentials."""

    key: str
    secret: str
    token: str | None = None

    def __call__(self) -> dict[str, Any]:
        """Return the credentials in the form that obstore expects, without an expiration time."""
        return {
            "access_key_id": self.key,
            "secret_access_key": self.secret,
            "token": self.token,
            "expires_at": None,
        }


class BotocoreCredentials:
    """A credential provider for obstore that looks up credentials with botocore.

    `profile` is the name of an AWS profile, or None for the default profile.

    Raises
    ------
    NoEquivalentError
        If botocore does not find credentials.
    """

    def __init__(self, profile: str | None) -> None:
        self._credentials = _session(profile).get_credentials()
        if self._credentials is None:
            raise NoEquivalentError("botocore found no credentials for S3")

    def __call__(self) -> dict[str, Any]:
        """Return the current credentials, with an expiration time five minutes from now."""
        frozen = self._credentials.get_frozen_credentials()
        # obstore calls this method again when the credentials expire. botocore caches its
        # credentials, and renews them before they expire.
        return StaticCredentials(frozen.access_key, frozen.secret_key, frozen.token)() | {
            "expires_at": datetime.now(UTC) + _LIFETIME
        }


def s3_arguments(options: Mapping[str, Any]) -> dict[str, Any]:
    """Translate s3fs storage options to arguments for obstore's ``S3Store``.

    The result contains a region only if a custom endpoint is configured. For a bucket on AWS, the
    caller must look up the region with `bucket_region`.

    Raises
    ------
    NoEquivalentError
        If obstore would behave differently from s3fs.
    """
    nested = options.get("client_kwargs") or {}
    _check_names({**options, "client_kwargs": None}, _OPTIONS, "the storage option")
    _check_names(nested, _OPTIONS_OF_CLIENT, "the option of client_kwargs")
    _check_names(
        {name: value for name, value in os.environ.items() if name.startswith("AWS_")},
        _VARIABLES,
        "the environment variable",
    )
    profile = options.get("profile")
    is_configured = profile is not None or _is_configured()
    region = _region(profile) if is_configured else os.environ.get("AWS_DEFAULT_REGION")
    region = nested.get("region_name") or region
    endpoints = options.get("endpoint_url"), nested.get("endpoint_url")
    endpoint = next(filter(None, (*endpoints, *map(os.environ.get, _ENDPOINTS))), None)
    config: dict[str, Any] = {}
    if endpoint is not None:
        config = {"endpoint": endpoint.rstrip("/"), "region": region or "us-east-1"}
    if options.get("requester_pays"):
        config["request_payer"] = True
    if options.get("anon"):
        return {"config": {**config, "skip_signature": True}}
    credentials = _static_credentials(*map(options.get, ("key", "secret", "token")))
    if credentials is None and not is_configured:
        credentials = _static_credentials(*map(os.environ.get, _CREDENTIALS))
    return {"config": config, "credential_provider": credentials or BotocoreCredentials(profile)}


def _check_names(options: Mapping[str, Any], known: Collection[str], kind: str) -> None:
    for name, value in options.items():
        if value is not None and name not in known:
            raise NoEquivalentError(f"obstore does not support {kind} {name}")


def _is_configured() -> bool:
    """Return whether an AWS profile is selected, or an AWS configuration file exists."""
    return any(map(os.environ.get, _PROFILES)) or any(
        os.path.exists(os.path.expanduser(os.environ.get(name, path)))
        for name, path in _FILES.items()
    )


def _static_credentials(
    key: str | None, secret: str | None, token: str | None
) -> StaticCredentials | None:
    """Return static credentials, or None if all arguments are None or empty.

    Raises
    ------
    NoEquivalentError
        If the access key or the secret key is missing, but another argument is set.
    """
    if key and secret:
        return StaticCredentials(key, secret, token)
    if key or secret or token:
        raise NoEquivalentError("obstore does not support incomplete credentials")
    return None


@lru_cache(256)
def bucket_region(bucket: str, endpoint: str = "https://s3.amazonaws.com") -> str:
    """Return the region of a bucket on AWS, without using credentials.

    Raises
    ------
    NoEquivalentError
        If the endpoint cannot be reached, or does not report the region.
    """
    request = HttpRequest(f"{endpoint}/{bucket}", method="HEAD")  # noqa: S310 (https)
    try:
        with urlopen(request, timeout=10) as response:  # noqa: S310
            headers = response.headers
    except HTTPError as error:  # S3 reports the region even if it redirects or denies access
        headers = error.headers
    except OSError as error:
        raise NoEquivalentError(f"the region of the bucket is unknown ({error})") from error
    region = headers.get("x-amz-bucket-region")
    if not region:
        raise NoEquivalentError("the region of the bucket is unknown")
    return str(region)


def _region(profile: str | None) -> str | None:
    """Return the region configured for an AWS profile, or None if no region is configured.

    Raises
    ------
    NoEquivalentError
        If the profile cannot be read, or has a setting that obstore does not support.
    """
    session = _session(profile)
    from botocore.exceptions import BotoCoreError

    try:
        keys = session.get_scoped_config()
    except BotoCoreError as error:
        raise NoEquivalentError(f"obstore does not support the AWS profile ({error})") from error
    for key in keys:
        if key not in _KEYS and not key.startswith(_PREFIXES_OF_KEYS):
            raise NoEquivalentError(
                f"obstore does not support the setting {key} of the AWS profile"
            )
    region: str | None = session.get_config_variable("region")
    return region


def _session(profile: str | None) -> Any:
    """Return a botocore session for an AWS profile, or for the default profile if None is passed.

    Raises
    ------
    NoEquivalentError
        If botocore is not installed.
    """
    try:
        from botocore.session import Session
    except ImportError as error:
        raise NoEquivalentError(
            "AWS profiles and roles require botocore, which is not installed"
        ) from error
    return Session(profile=profile)
