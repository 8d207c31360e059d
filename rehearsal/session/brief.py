"""A drill's brief as Markdown: title, minutes, the text, and the signatures the check calls."""

from __future__ import annotations

import textwrap

from rehearsal.grading.drill import Drill, Stage, leads_to

# Situation and task come first; then the signatures; then what must hold.
REQUIREMENTS = "\n**What must hold**"


def warm_up_sentence(drill: Drill) -> str:
    """What to do before this drill, or what it prepares you for; "" if nothing."""
    if drill.warm_ups:
        *first, last = [f"`{name}`" for name in drill.warm_ups]
        return f". To warm up, do {', '.join(first)} and {last} first."
    after = leads_to(drill.id)
    return f". This is a warm-up for `{after}`, which is the complete trainer." if after else ""


def stage_item(number: int, stage: Stage) -> str:
    """One stage's requirements as an item of a list, wrapped for a terminal."""
    text = f"{number}. **{stage.name}**: {stage.must.strip()}"
    return textwrap.fill(text, 92, subsequent_indent="   ", break_on_hyphens=False)


def brief_of(drill: Drill) -> str:
    """The whole brief, which ends with what to do next."""
    asked = [f"- {explanation.asks}" for explanation in drill.explanations]
    signatures = "\n".join(f"{name}{signature}" for name, signature in drill.needs.items())
    block = f"**The check calls**\n\n```python\n{signatures}\n```\n"
    before, marker, after = drill.brief.partition(REQUIREMENTS)
    return "\n".join(
        [
            f"### {drill.title}",
            "",
            textwrap.fill(f"{drill.minutes:g} minutes{warm_up_sentence(drill)}", 92),
            "",
            before.rstrip(),
            "",
            block,
            *([f"{marker}{after}".strip(), ""] if marker else []),
            *map(stage_item, range(1, len(drill.stages) + 1), drill.stages),
            *([""] if drill.stages else []),
            *(["**Once it passes, explain aloud**", "", *asked, ""] if asked else []),
            f'Then: `check("{drill.id}")`. When you\'re stuck: `hint("{drill.id}")`.',
        ]
    )
