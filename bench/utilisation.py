"""Which share of the tokens that full KV caches allow the leases of a network of GPUs bring to the log.

    python bench/utilisation.py [--minutes 120]

The coordinator's core and the nodes' agents are the real ones; the engines are simulated from data sheets
(docs/operating/simulate.md#gpu-nodes). Two networks: Qwen2.5-1.5B on RTX 4090s and an H100 with a mean of 2k tokens,
and Qwen3-8B on A100s and an H100 with a mean of 4k; lengths are log-normal up to 16k. The last worker of each joins
late, one more takes leases and never answers them, and new weights come several times.
"""

import time

from benchmark import BenchmarkParser, print_result

from prime_lab.simulator.gpu_world import GpuPlan, GpuReport, simulate_gpus


def make_plans(minutes: int, warm_minutes: int) -> dict[str, GpuPlan]:
    return {
        "1b5": GpuPlan(
            seed=1,
            model="Qwen2.5-1.5B",
            cards=("4090", "H100", "4090", "4090"),
            mean_tokens=2_000,
            minutes=minutes,
            warm_minutes=warm_minutes,
            slots_per_step=4_096,
            batch=0.3,
            late_starts=(5,),
            hoarders=1,
        ),
        "8b": GpuPlan(
            seed=1,
            model="Qwen3-8B",
            cards=("A100-80", "H100", "A100-80", "A100-80"),
            mean_tokens=4_000,
            minutes=minutes,
            warm_minutes=2 * warm_minutes,
            slots_per_step=800,
            batch=0.3,
            late_starts=(5,),
            hoarders=1,
        ),
    }


def measure(name: str, plan: GpuPlan) -> GpuReport:
    began = time.process_time()
    report = simulate_gpus(plan)
    each = ", ".join(
        f"{card} {share:.0%} of {most:,.0f}"
        for card, share, most in zip(plan.cards, report.by_worker, report.possible, strict=True)
    )
    print(
        f"{name}: {report.tokens_per_s:,.0f} of {report.possible_tokens_per_s:,.0f} tokens/s ({each}); "
        f"{report.leases} leases of {report.rows_per_lease:.0f} rows, {report.open_leases:.1f} open at once, "
        f"{report.lost:.2%} lost; {report.steps} new checkpoints; {time.process_time() - began:.0f} s of CPU",
        flush=True,
    )
    return report


def main() -> None:
    parser = BenchmarkParser(__doc__)
    parser.add_size("--minutes", 120, 4, "virtual minutes that are measured")
    parser.add_size("--warm-minutes", 60, 6, "before that, for the smaller model; twice as many for the larger one")
    args = parser.parse()
    reports = {name: measure(name, plan) for name, plan in make_plans(args.minutes, args.warm_minutes).items()}
    print_result(
        utilisation_1b5=f"{reports['1b5'].utilisation:.3f}",
        utilisation_8b=f"{reports['8b'].utilisation:.3f}",
        lost=f"{max(report.lost for report in reports.values()):.4f}",
    )


if __name__ == "__main__":
    main()
