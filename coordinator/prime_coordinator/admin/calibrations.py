"""Named calibrations: bounds that were measured before, for runs of the model and precision that they were measured on.

Noise depends on the model's weights, its shape, the precision, the engine and the machine. So a name is refused for a
model of another architecture. A family is listed only after a measurement, never with the bounds of another one.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from prime_protocol.proofs.tolerance import Precision, Tolerance
from prime_runtime.settings.schema import ConfigError

MEASURE_ADVICE = (
    "Measure the bounds with `prime-node calibrate machine MODEL --out tolerance.toml` and give that file with --terms"
)
SMOLLM2_135M = {
    "model_type": "llama",
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "vocab_size": 49152,
}
"""Fields of its config.json."""
MEASURED_AT_MS = 1_794_914_040_000
"""2026-11-17 11:14 UTC, when docs/verification/error-rates.md was measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedCalibration:
    """Bounds, the model that they hold for, and what they were measured on."""

    name: str
    architecture: Mapping[str, Any]
    """Fields that the config.json of the run's model must have."""
    measured_on: str
    measured_at_ms: int
    tolerance: Tolerance

    def describe(self) -> str:
        """The term `calibration` of a run that uses it."""
        return f"{self.name}: {self.measured_on}"


NAMED_CALIBRATIONS = (
    NamedCalibration(
        name="smollm2-135m-float32",
        architecture=SMOLLM2_135M,
        measured_on="SmolLM2-135M-Instruct in float32, 1,079 chunks, torch on one x86-64 CPU",
        measured_at_ms=MEASURED_AT_MS,
        tolerance=Tolerance(
            precision=Precision.FLOAT32,
            exponent_mismatches_max=6,
            sign_mismatches_max=5,
            mantissa_error_mean_max=1.1,
            mantissa_error_median_max=2,
            margin_max=0.00068,
            margin_mean_max=1.9e-05,
            logprob_error_max=0.00034,
            logprob_error_mean_max=1.5e-05,
            exponent_mismatches_usual=1,
            mantissa_error_mean_usual=0.05,
            margin_usual=0.0001,
            margin_mean_usual=1e-05,
            logprob_error_usual=0.0001,
            logprob_error_mean_usual=1e-05,
            noise_typical=1.0,
            noise_spread=0.5,
            noise_spread_chunk=0.5,
        ),
    ),
    NamedCalibration(
        name="smollm2-135m-bfloat16",
        architecture=SMOLLM2_135M,
        measured_on="SmolLM2-135M-Instruct in bfloat16, 2,100 chunks, torch on one x86-64 CPU",
        measured_at_ms=MEASURED_AT_MS,
        tolerance=Tolerance(
            precision=Precision.BFLOAT16,
            exponent_mismatches_max=17,
            sign_mismatches_max=5,
            mantissa_error_mean_max=3.5,
            mantissa_error_median_max=6,
            margin_max=1.5,
            margin_mean_max=0.044,
            logprob_error_max=2.5,
            logprob_error_mean_max=0.13,
            exponent_mismatches_usual=8,
            mantissa_error_mean_usual=1.8,
            margin_usual=0.27,
            margin_mean_usual=0.013,
            logprob_error_usual=0.4,
            logprob_error_mean_usual=0.067,
            noise_typical=1.01,
            noise_spread=0.01,
            noise_spread_chunk=0.137,
        ),
    ),
)
"""From the tables of docs/verification/error-rates.md. `margin_rate` and `margin_scale` were not measured
there and have the protocol's defaults; honest work was not judged again with them."""


def find_calibration(name: str) -> NamedCalibration | None:
    return next((each for each in NAMED_CALIBRATIONS if each.name == name), None)


def check_architecture(calibration: NamedCalibration, model_config: Mapping[str, Any] | None) -> None:
    """ConfigError: the model is another one, or its config.json was not given."""
    if model_config is None:
        raise ConfigError(
            f"calibration {calibration.name} holds for one architecture only: give the model's folder with"
            " --model-config, so that it can be compared"
        )
    for field, value in calibration.architecture.items():
        found = model_config.get(field)
        if found != value:
            raise ConfigError(
                f"calibration {calibration.name} was measured on a model with {field} {value}, this one has {found}. "
                + MEASURE_ADVICE
            )
