"""The registry as a service: whether it can serve requests, and how much a caller may use."""

from speaker_registry.client.executor import PlanExecutor
from speaker_registry.schemas import Health, Quota


class Service(PlanExecutor):
    def health(self) -> Health:
        """Ask once whether the registry can serve requests. No API key is needed.

        Raises:
            Unavailable: There is no registry at the address. If the registry cannot serve requests now, the
                returned `Health` says why.
        """
        return self._run(self._calls.health())

    def quota(self) -> Quota:
        """Get the limits of the namespace and this API key, and how much of them is used."""
        return self._run(self._calls.quota())
