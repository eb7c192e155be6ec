"""`python -m services.registry_api.healthy`: the health check of a container, which requests its API."""

import http.client
import sys

from services.shared.configuration.api import ApiSettings

ANSWER_SECONDS = 4.0


def complaint(settings: ApiSettings) -> str | None:
    """Return the reason why the API that these settings started is not healthy, or None."""
    host = settings.own_host
    connection = http.client.HTTPConnection(host, settings.port, timeout=ANSWER_SECONDS)
    try:
        connection.request("GET", "/healthz")
        status = connection.getresponse().status
    except (OSError, http.client.HTTPException) as error:
        return f"{host}:{settings.port} does not answer: {error}"
    finally:
        connection.close()
    return None if status == http.HTTPStatus.OK else f"/healthz of {host}:{settings.port} answered {status}"


if __name__ == "__main__":
    fault = complaint(ApiSettings())
    if fault:
        print(fault, file=sys.stderr)
    sys.exit(1 if fault else 0)
