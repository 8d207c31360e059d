import sys

if __name__ == "__main__":
    from rehearsal import grade_source
    from rehearsal.grading.drill import load

    for spec in sys.argv[1:]:
        drill, name, seeds = spec.split(":")
        d = load(drill)
        texts = {**d.solutions(), **{m.name: m.text for m in d.near_misses()}}
        for seed in seeds.split(","):
            v = grade_source(drill, texts[name], seed=int(seed))
            print(
                name,
                seed,
                v.status,
                str(v)[:1800] if v.status != "passed" else f"{v.seconds:.2f}",
                flush=True,
            )
