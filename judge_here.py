import sys, multiprocessing

if __name__ == "__main__":
    from pathlib import Path
    from rehearsal import drills
    from rehearsal.grading import drills_page

    ds = sorted(
        drills(),
        key=lambda d: (
            -len(d.near_misses()) * (3 if d.id in ("live_trainer", "cell_launch") else 1)
        ),
    )
    kept = drills_page.kept_scores()
    todo = [d for d in ds if d.id not in kept or kept[d.id].digest != drills_page.digest_of(d)]
    print(len(todo), [d.id for d in todo], flush=True)
    import json

    out = Path(sys.argv[1])
    scores = {}
    for name, (score, said) in drills_page.judged_in_turn(todo, int(sys.argv[2])):
        print("\n".join(said), flush=True)
        scores[name] = score
        out.write_text(json.dumps(scores))
