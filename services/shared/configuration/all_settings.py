"""Lists every class of settings, in the order of the operators' documentation. Each class is small and
frozen, covers one concern, and is read from environment variables with a prefix of its own.

`__main__` builds the settings that its program needs, and passes them to the code that needs them.
"""

from pydantic_settings import BaseSettings

from services.shared.configuration.access import AccessSettings, RateSettings
from services.shared.configuration.api import ApiSettings, HousekeepingSettings
from services.shared.configuration.registry import RegistrySettings
from services.shared.configuration.store import StoreSettings
from services.shared.configuration.telemetry import LogSettings, MetricsSettings, TracesSettings
from services.shared.configuration.uploads import UploadLimits
from services.shared.configuration.worker import ExtractorSettings, OmniVoiceSettings, WorkerSettings

ALL_SETTINGS: tuple[type[BaseSettings], ...] = (
    StoreSettings,
    UploadLimits,
    RegistrySettings,
    HousekeepingSettings,
    WorkerSettings,
    ApiSettings,
    AccessSettings,
    RateSettings,
    LogSettings,
    MetricsSettings,
    TracesSettings,
    ExtractorSettings,
    OmniVoiceSettings,
)
