"""How the pages of reports look.

Here: the style sheet, light and dark, for screens wide and narrow. Not here: what is on a page (`report_page.py`).
"""

STYLE = """
:root { color-scheme: light dark; --ground: #fbfaf7; --ink: #1d2021; --soft: #63676a; --line: #dedbd3; --card: #fff;
  --good: #1b6e3a; --bad: #b3261e; --other: #7a5c00; --accent: #234f9e; --code: #f3f1ea; }
@media (prefers-color-scheme: dark) { :root { --ground: #15171a; --ink: #e8e6e1; --soft: #9da3a8; --line: #33373c;
  --card: #1d2024; --good: #6fcf8f; --bad: #ff8a80; --other: #e0c060; --accent: #8fb4ff; --code: #14161a; } }
* { box-sizing: border-box; }
html { scroll-padding-top: 3.5rem; }
body { margin: 0; background: var(--ground); color: var(--ink); font: 16px/1.5 system-ui, "DejaVu Sans", sans-serif; }
.page { margin: 0 auto; max-width: 76rem; padding: 1.5rem 1.25rem 4rem; }
h1 { font-size: 1.7rem; margin: 0 0 .25rem; letter-spacing: -.01em; line-height: 1.2; }
h2 { font-size: 1.2rem; margin: 2.75rem 0 .75rem; } h3 { font-size: 1rem; margin: 1.25rem 0 .4rem; }
.soft { color: var(--soft); } .good { color: var(--good); } .bad { color: var(--bad); } .other { color: var(--other); }
a { color: var(--accent); } :focus-visible { outline: 3px solid var(--accent); outline-offset: 2px; }
.skip { position: absolute; left: -99rem; } .skip:focus { left: 1rem; top: .5rem; z-index: 2; background: var(--card);
  padding: .4rem .8rem; }
nav { position: sticky; top: 0; z-index: 1; background: var(--ground); border-bottom: 1px solid var(--line); }
nav div { margin: 0 auto; max-width: 76rem; padding: .6rem 1.25rem;
  display: flex; flex-wrap: wrap; gap: .25rem 1.25rem; }
.scroll { overflow-x: auto; border: 1px solid var(--line); border-radius: 8px; background: var(--card); }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
caption { text-align: left; padding: .6rem .8rem; color: var(--soft); }
th, td { padding: .35rem .8rem; text-align: right; border-top: 1px solid var(--line); white-space: nowrap; }
tbody th { font-weight: 500; } thead th { font-weight: 600; color: var(--soft); border-top: 0; vertical-align: bottom; }
tr > :first-child { text-align: left; } .list td, .list th { text-align: left; } .list td { vertical-align: top; }
td.wrap { white-space: normal; min-width: 16rem; overflow-wrap: anywhere; }
td.number, th.number { text-align: right !important; }
.matrix thead th { white-space: normal; min-width: 8.5rem; } .matrix td, .matrix thead th { text-align: center; }
.matrix tr > :first-child { text-align: left; position: sticky; left: 0; background: var(--card); }
.heat .where { text-align: left; color: var(--soft); min-width: 9rem; font-size: .85rem; }
.heat { width: auto; } .heat td { text-align: center; min-width: 6.5rem; padding: .25rem .6rem; }
.heat thead th { text-align: center; } .heat .first { border-left: 2px solid var(--line); }
.heat tr > :first-child { position: sticky; left: 0; background: var(--card); }
.heat tbody th, code, pre { font-family: ui-monospace, "DejaVu Sans Mono", monospace; font-size: 13px; }
.legend { display: flex; gap: .5rem; align-items: center; margin: .6rem 0; font-size: .85rem; color: var(--soft); }
.legend i { display: inline-block; width: 9rem; height: .8rem; border-radius: 3px;
  background: linear-gradient(90deg, hsl(130 60% 45% / .12), hsl(65 60% 45% / .3), hsl(0 60% 45% / .45)); }
.tiers { display: flex; flex-wrap: wrap; gap: .75rem; margin: 1.25rem 0 0; padding: 0; list-style: none; }
.tiers li { border: 1px solid var(--line); border-left: 4px solid currentColor; border-radius: 8px;
  background: var(--card); padding: .55rem 1rem; min-width: 11rem; }
.tiers b { display: block; } .tiers span { color: var(--soft); font-size: .9rem; }
details { border: 1px solid var(--line); border-radius: 8px; background: var(--card);
  margin: .5rem 0; padding: .5rem .9rem; }
summary { cursor: pointer; } summary p { margin: .1rem 0 .1rem 1.1rem; color: var(--soft); }
pre { overflow-x: auto; margin: 0; background: var(--code); border: 1px solid var(--line); padding: .7rem .8rem;
  border-radius: 6px; line-height: 1.45; max-height: 28rem; }
.bar { display: block; height: .65rem; border-radius: 3px; background: var(--accent); min-width: 2px;
  margin-top: .4rem; }
@media print { nav { position: static; } details { break-inside: avoid; } }
"""
