// htmx (htmx.min.js) keeps the page up to date; the attributes are in the templates. This is what htmx has no attribute
// for, or only one that evaluates text, which our Content-Security-Policy forbids. Pages work without any script.
"use strict";
(() => {
  const away = document.getElementById("away");
  let shown = {}; // which address was last fetched, and its tag

  function on(name, act) {
    document.addEventListener(name, (event) => act(event.detail.ctx, event));
  }

  on("htmx:config:request", (ctx, event) => {
    if (document.hidden) event.preventDefault(); // a hidden page catches up when it is shown
    for (const [name, value] of [...ctx.request.body]) if (!value) ctx.request.body.delete(name);
  });
  // A page of 1,000 tables that has not changed is neither sent nor parsed again.
  on("htmx:before:request", (ctx) => {
    if (ctx.request.action === shown.address) ctx.request.headers["If-None-Match"] = shown.tag;
  });
  on("htmx:after:request", (ctx, event) => {
    away.hidden = ctx.response.status < 400;
    if (!ctx.response.raw.redirected) return;
    event.preventDefault(); // to the log-in page: the token has changed
    location.reload();
  });
  on("htmx:after:swap", (ctx) => {
    if (ctx.response.status === 200) shown = { address: ctx.request.action, tag: ctx.response.headers.get("ETag") };
  });
  on("htmx:error", () => (away.hidden = false));

  document.addEventListener("click", async (event) => {
    const button = event.target.closest("button[data-copy]");
    if (!button) return;
    await navigator.clipboard.writeText(button.dataset.copy);
    button.textContent = "Copied";
    setTimeout(() => (button.textContent = "Copy"), 1500);
  });

  document.addEventListener("keydown", (event) => {
    const search = document.getElementById("q");
    const typing = event.target.matches("input, select, textarea");
    if (event.key !== "/" || typing || event.ctrlKey || event.metaKey || event.altKey || !search) return;
    event.preventDefault();
    search.focus();
  });
})();
