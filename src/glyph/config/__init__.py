"""The typed configuration of a training run: what can be set, from where it is read, and what is refused.

    defaults (schema.py: the published values) → configs/SCALE/STAGE.toml → overlay files → dotted overrides
      → `load_config` → SftConfig | RlConfig → `dump_config` → config.toml in the run's folder → `read_config`

Contradictions are refused here, before any model is loaded (checks.py). `python -m glyph.config` prints
docs/configuration.md (reference.py). No torch.
"""

from glyph.config.checks import check_device
from glyph.config.loading import ConfigError, dump_config, load_config, read_config, scales
from glyph.config.schema import (
    CheckpointsConfig,
    Config,
    CreditConfig,
    EnvironmentConfig,
    EvaluationConfig,
    GenerationConfig,
    LossConfig,
    MemoryConfig,
    OptimiserConfig,
    RlConfig,
    RlSection,
    SamplingConfig,
    SftConfig,
    SftSection,
    Stage,
    TracesConfig,
    TrackingConfig,
)

__all__ = [
    "CheckpointsConfig",
    "Config",
    "ConfigError",
    "CreditConfig",
    "EnvironmentConfig",
    "EvaluationConfig",
    "GenerationConfig",
    "LossConfig",
    "MemoryConfig",
    "OptimiserConfig",
    "RlConfig",
    "RlSection",
    "SamplingConfig",
    "SftConfig",
    "SftSection",
    "Stage",
    "TracesConfig",
    "TrackingConfig",
    "check_device",
    "dump_config",
    "load_config",
    "read_config",
    "scales",
]
