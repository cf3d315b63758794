// Every two seconds, while something on the page changes by itself: fetch the page again and swap the parts that are
// marked `data-live`. The server stays the only one that knows how anything looks; where it gives its page a version
// (ETag), an unchanged one is 304 and costs nothing more.
(() => {
  const PERIOD_MS = 2000;
  let version = null;

  async function refresh() {
    if (document.hidden || !document.querySelector('[data-live-active="yes"]')) return;
    const headers = version ? { "If-None-Match": version } : {};
    const answer = await fetch(location.href, { credentials: "same-origin", cache: "no-store", headers });
    if (!answer.ok || answer.redirected) return; // unchanged, signed out, or the row is gone
    version = answer.headers.get("ETag");
    const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
    if (!fresh.querySelector('[data-live-active="yes"]')) {
      location.reload(); // it has ended, which changes the buttons too; then nothing is asked for any more
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
      // the server restarts: try again
    }
    setTimeout(loop, PERIOD_MS);
  }

  setTimeout(loop, PERIOD_MS);
})();
