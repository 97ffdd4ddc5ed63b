// The keys.

import { byId } from "./dom.js";

const typing = (node) => node instanceof HTMLInputElement || node instanceof HTMLSelectElement;

/** actions: what the page does; `actions.view()` is the view that is shown. */
export function listenToKeys(actions) {
  const steps = { j: 1, ArrowDown: 1, k: -1, ArrowUp: -1, PageDown: 20, PageUp: -20 };
  const keys = {
    p: actions.pause,
    "?": () => byId("help").showModal(),
    s: () => actions.view().table?.sortNext?.(1),
    S: () => actions.view().table?.sortNext?.(-1),
    r: () => {
      const table = actions.view().table;
      table?.sortBy?.(table.sort, !table.reverse);
    },
    m: () => actions.view().nextMeasure?.(),
    "/": () => actions.view().filter?.focus(),
    Escape: actions.close,
    Enter: () => call(actions.view(), "openSelected"),
  };
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || byId("help").open) return;
    if (typing(event.target)) {
      if (event.key === "Escape") {
        event.target.value = "";
        event.target.dispatchEvent(new Event("input"));
        event.target.blur();
      } else if (event.key === "Enter") event.target.blur();
      return;
    }
    if (event.key === "Enter" && event.target.closest("button")) return;
    if (byId("details-body").contains(event.target) && event.key in steps) return;
    const number = Number(event.key);
    if (number >= 1 && number <= 5) actions.show(number - 1);
    else if (event.key in steps) call(actions.view(), "move", steps[event.key]);
    else if (event.key in keys) keys[event.key]();
    else return;
    event.preventDefault();
  });
}

/** Do what a view does itself, or what its table does. */
function call(view, action, ...given) {
  (view[action] ? view : view.table)?.[action]?.(...given);
}
