"""Results -> a markdown page: losses with their spread, and what each way of keeping costs."""
import statistics


def spread(values, digits=4):
    mean = statistics.fmean(values)
    return f"{mean:.{digits}f}" + (f" ± {statistics.stdev(values):.{digits}f}" if len(values) > 1 else "")


def shared(study, row, other):
    """Runs of two rows with the same seed, and so with the same sequences."""
    mine, theirs = (study["rows"].get(name, {"seeds": {}})["seeds"] for name in (row, other))
    return [(mine[seed], theirs[seed]) for seed in mine if seed in theirs]


def cost(study, row, other, text):
    """Percent by which the loss of a row lies above another's, seed by seed."""
    return [100 * (run[text] / base[text] - 1) for run, base in shared(study, row, other)]


def percent(values):
    return "" if not values else f"{statistics.fmean(values):+.2f}%" + (f" ± {statistics.stdev(values):.2f}" if len(values) > 1 else "")


def page(name, study):
    s, before = study["settings"], study["before"]
    runs = max((len(row["seeds"]) for row in study["rows"].values()), default=0)
    start = "a model of 3.2 M parameters with random weights and a token for each byte" if s["model"] == "scratch" else s["model"]
    lines = [
        f"# Study: {name}", "",
        "Written by `scripts/study/study.py`; [docs/numerics.md](../numerics.md) explains it.", "",
        f"Start: {start}. {s['steps']} steps of {s['batch']}×{s['seq']} tokens, largest rate {s['lr']}, {runs} "
        f"seed{'s' if runs > 1 else ''}. Learnt: {s['text'][0]} but for its end; *held* is that end, *off* is {s['off'][0]}. "
        "Losses are in nats per token, of the exported model; ± is the standard deviation over seeds. "
        "Costs are against the row named, seed by seed."
        + ("" if runs >= 3 else " **Too few seeds to judge by**: their spread is not known."), "",
        "| kept between steps | seeds | bytes / parameter | held | off | held, against the yardstick | off | held, against all f32 | off |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for key, label in (("f32", "before training, f32 weights"), ("nvfp4", "before training, NVFP4 weights")):
        lines.append(f"| {label} | | | {before[key]['held']:.4f} | {before[key]['off']:.4f} | | | | |")
    for key, row in study["rows"].items():
        of = list(row["seeds"].values())
        cells = [row["kept"], str(len(of)), f"{of[0]['bytes_per_parameter']:.2f}", *(spread([run[text] for run in of]) for text in ("held", "off"))]
        for other in ("yardstick", "all-f32"):
            cells += ["" if key == other else percent(cost(study, key, other, text)) for text in ("held", "off")]
        lines.append("| " + " | ".join(cells) + " |")
    seconds = sum(run["seconds"] for row in study["rows"].values() for run in row["seeds"].values())
    lines += [
        "", f"![cost of each row against the yardstick]({name}-cost.svg)", "",
        f"![training loss against the yardstick, step by step]({name}-curves.svg)", "",
        f"All steps together took {seconds / 60:.0f} minutes. Machine-readable: [{name}.json]({name}.json).", "",
    ]
    return "\n".join(lines)
