// Keeps a page up to date: asks for it again, and changes only what has changed, so that scroll, focus, open details
// and what is being typed stay as they are. Pages work without it.
"use strict";
(() => {
  const EVERY = 5000;
  let tag = null;
  let asking = null;

  function same(a, b) {
    return a.nodeType === b.nodeType && a.nodeName === b.nodeName && key(a) === key(b);
  }

  function key(node) {
    return node.nodeType === 1 ? node.id || node.getAttribute("data-key") : null;
  }

  function attributes(from, to) {
    for (const { name } of [...from.attributes]) {
      if (!to.hasAttribute(name) && name !== "open" && name !== "hidden") from.removeAttribute(name);
    }
    for (const { name, value } of to.attributes) {
      if (name === "hidden" && from.hasAttribute("data-copy")) continue;
      if (from.getAttribute(name) !== value) from.setAttribute(name, value);
    }
  }

  function become(from, to) {
    if (from.isEqualNode(to)) return;
    if (from.nodeType !== 1) {
      from.nodeValue = to.nodeValue;
      return;
    }
    if (from.matches("input, select, textarea")) return; // what somebody has typed or chosen is theirs
    attributes(from, to);
    const known = new Map();
    for (const child of from.children) if (key(child)) known.set(key(child), child);
    let at = from.firstChild;
    for (const wanted of [...to.childNodes]) {
      const kept = key(wanted) ? known.get(key(wanted)) : null;
      if (kept && kept.nodeName === wanted.nodeName) {
        if (kept === at) at = at.nextSibling;
        else from.insertBefore(kept, at);
        become(kept, wanted);
      } else if (at && !key(wanted) && same(at, wanted)) {
        const here = at;
        at = at.nextSibling;
        become(here, wanted);
      } else {
        from.insertBefore(document.importNode(wanted, true), at);
      }
    }
    while (at) {
      const gone = at;
      at = at.nextSibling;
      gone.remove();
    }
  }

  function ready() {
    for (const button of document.querySelectorAll("button[data-copy][hidden]")) button.hidden = false;
  }

  async function ask(address, fresh) {
    if (asking && !fresh) return;
    if (asking) asking.abort();
    const mine = (asking = new AbortController());
    try {
      const headers = tag && !fresh ? { "If-None-Match": tag } : {};
      const answer = await fetch(address, { headers, cache: "no-store", signal: mine.signal });
      if (answer.status === 200 && !answer.redirected) {
        const page = new DOMParser().parseFromString(await answer.text(), "text/html");
        tag = answer.headers.get("ETag");
        const [from, to] = [document.querySelector("main"), page.querySelector("main")];
        if (from && to) become(from, to);
        document.title = page.title;
        ready();
      }
    } catch {
      // The server is away or another question came first; the next one may be answered.
    } finally {
      if (asking === mine) asking = null;
    }
  }

  setInterval(() => {
    if (!document.hidden) ask(location.href, false);
  }, EVERY);
  document.addEventListener("visibilitychange", () => {
    if (!document.hidden) ask(location.href, false);
  });

  document.addEventListener("click", async (event) => {
    const button = event.target.closest("button[data-copy]");
    if (!button) return;
    await navigator.clipboard.writeText(button.dataset.copy);
    button.textContent = "Copied";
    setTimeout(() => (button.textContent = "Copy"), 1500);
  });

  // The search shows its tables while one types; without this script, on Enter.
  let waiting = null;
  function search(form, at_once) {
    clearTimeout(waiting);
    waiting = setTimeout(() => {
      const query = new URLSearchParams([...new FormData(form)].filter(([, value]) => value));
      if (query.get("sort") === "health") query.delete("sort");
      const address = query.size ? `${form.getAttribute("action")}?${query}` : form.getAttribute("action");
      history.replaceState(null, "", address);
      ask(location.href, true);
    }, at_once ? 0 : 200);
  }
  document.addEventListener("input", (event) => {
    const form = event.target.closest("form[data-follow]");
    if (form) search(form, event.target.matches("select"));
  });
  document.addEventListener("submit", (event) => {
    if (!event.target.matches("form[data-follow]")) return;
    event.preventDefault();
    search(event.target, true);
  });
  document.addEventListener("keydown", (event) => {
    const typing = event.target.matches("input, select, textarea");
    const search = document.getElementById("q");
    if (event.key === "/" && !typing && !event.ctrlKey && !event.metaKey && search) {
      event.preventDefault();
      search.focus();
    }
  });
  ready();
})();
