"""How the page looks, and what highlights the lines of one statement together: no network, no library."""

STYLE = """
:root { color-scheme: light dark; --line: #8884; --soft: #8881; --lit: #f2c94c66; --link: #2563c9; }
@media (prefers-color-scheme: dark) { :root { --link: #7fb0ff; --lit: #b8860b88; } }
* { box-sizing: border-box; }
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 100rem; padding: 0 1rem; }
main { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 38rem), 1fr)); gap: 2rem; }
section { min-width: 0; } a { color: var(--link); }
pre { overflow-x: auto; background: var(--soft); padding: .6rem; border-radius: 6px; font-size: 13px; margin: .3rem 0; }
pre .line { display: block; min-width: max-content; min-height: 1.2em; color: inherit; text-decoration: none; }
.ins { background: #2ea04326; } .del { background: #f8514926; }
.ins mark { background: #2ea0438c; } .del mark { background: #f851498c; } mark { color: inherit; }
[data-s] { cursor: pointer; } .lit { background: var(--lit); } pre.statement { border-left: 3px solid var(--line); }
pre.statement.lit, pre.statement:target { border-color: #d8a013; } .pinned { outline: 2px solid #d8a013; }
table { border-collapse: collapse; margin: .6rem 0; display: block; overflow-x: auto; }
th, td { text-align: left; padding: .15rem .8rem .15rem 0; vertical-align: top; }
th { font-weight: 500; white-space: nowrap; } tr { border-bottom: 1px solid var(--line); }
.classes td:not(:last-child), .roles td, .kernels td { white-space: nowrap; } td code { font-size: 13px; }
.formula { margin: .4rem 0 0; overflow-x: auto; overflow-y: hidden; font-size: 1.1rem; padding: .4rem 0 .2rem; }
.formula math { display: inline-block; }
.conditions { overflow-x: auto; overflow-y: hidden; opacity: .75; margin-left: 1.5rem; padding: .1rem 0 .35rem; }
.reach { display: flex; flex-wrap: wrap; align-items: flex-start; gap: 1rem; margin: .5rem 0; } figure { margin: 0; }
.from { align-self: center; opacity: .75; } figcaption { font-size: 12px; line-height: 1.35; }
.lines { stroke: var(--line); fill: none; pointer-events: none; } .tick { font-size: 9px; fill: currentColor; }
.chip, .bar { display: inline-block; height: .7em; border-radius: 2px; } .chip { width: .7em; }
.bar { background: #3b7dd8; min-width: 1px; } .note { font-size: 13px; opacity: .75; margin: .2rem 0; }
summary { cursor: pointer; font-weight: 600; margin-top: 1rem; }
h4 { margin: 1.2rem 0 .2rem; } h5 { margin: .8rem 0 0; font-size: 1em; } small { font-weight: 400; opacity: .75; }
.code { display: grid; gap: 1rem; } .code > div { min-width: 0; } .code pre { max-height: 34rem; overflow: auto; }
@media (min-width: 70rem) { .code.two { grid-template-columns: 1fr 1fr; } }
"""

SCRIPT = """
(() => {
  let pinned = null;
  const of = e => e.target instanceof Element ? e.target.closest("[data-s]") : null;
  const show = source => {
    for (const e of document.querySelectorAll(".lit, .pinned")) e.classList.remove("lit", "pinned");
    if (!source) return [];
    const keys = source.dataset.s.split(" ");
    const found = [...document.querySelectorAll("[data-s]")].filter(e => {
      const own = e.dataset.s.split(" ");
      return own.includes(keys[0]) || keys.includes(own[0]);  // the first is what a line serves itself
    });
    for (const e of found) e.classList.add("lit");
    return found;
  };
  const pin = source => {
    pinned = source === pinned ? null : source;
    const found = show(pinned);
    if (!pinned) return;
    pinned.classList.add("pinned");
    const panes = new Set([pinned.closest("pre")]);
    for (const e of found) {
      const pane = e.closest("pre");
      if (panes.has(pane) || !pane.closest(".code")) continue;
      panes.add(pane);
      pane.scrollTop += e.getBoundingClientRect().top - pane.getBoundingClientRect().top - 40;
    }
  };
  document.addEventListener("mouseover", e => { if (!pinned) show(of(e)); });
  document.addEventListener("focusin", e => { if (!pinned) show(of(e)); });
  document.addEventListener("click", e => { const s = of(e); if (s && !s.href) pin(s); });
  document.addEventListener("keydown", e => { if (e.key === "Escape") { pinned = null; show(null); } });
})();
"""
