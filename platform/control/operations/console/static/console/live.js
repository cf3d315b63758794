// While some part of the page is active, this script fetches the page again every two seconds and replaces the parts
// that are marked `data-live`, so that only the server renders HTML. If the page has a version (ETag), the server
// answers 304 for an unchanged page.
(() => {
  const PERIOD_MS = 2000;
  let version = null;

  async function refresh() {
    if (document.hidden || !document.querySelector('[data-live-active="yes"]')) return;
    const headers = version ? { "If-None-Match": version } : {};
    const response = await fetch(location.href, { credentials: "same-origin", cache: "no-store", headers });
    if (!response.ok || response.redirected) return; // unchanged, signed out, or the row is deleted
    version = response.headers.get("ETag");
    const fresh = new DOMParser().parseFromString(await response.text(), "text/html");
    if (!fresh.querySelector('[data-live-active="yes"]')) {
      location.reload(); // the last active part has ended, which also changes the buttons; no further refresh follows
      return;
    }
    for (const part of document.querySelectorAll("[data-live]")) {
      const next = fresh.querySelector(`[data-live="${CSS.escape(part.dataset.live)}"]`);
      if (next && next.outerHTML !== part.outerHTML && part.isConnected) part.replaceWith(document.importNode(next, true));
    }
  }

  async function loop() {
    try {
      await refresh();
    } catch {
      // the server is restarting: try again later
    }
    setTimeout(loop, PERIOD_MS);
  }

  setTimeout(loop, PERIOD_MS);
})();
