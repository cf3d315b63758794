// The chat on a deployment's page. It sends the conversation as a chat completion and shows the answer as it streams;
// text that comes from accepted draft tokens is marked. Everything is inserted as text, never as HTML.
(() => {
  const chat = document.querySelector("[data-chat]");
  const log = chat.querySelector("[data-chat-log]"), form = chat.querySelector("form");
  const problem = chat.querySelector("[data-chat-error]");
  const [send, stop, restart] = form.querySelectorAll("button");
  let messages = [], running = null; // running: aborts the request that waits for its answer

  function post(body) {
    return fetch(chat.dataset.chat, {
      method: "POST",
      credentials: "same-origin",
      headers: {
        "Content-Type": "application/json",
        "X-CSRFToken": chat.dataset.token,
        "X-Organization": chat.dataset.organization,
      },
      body: JSON.stringify(body),
      signal: running.signal,
    });
  }

  async function errorOf(response) {
    try {
      return (await response.json()).error;
    } catch {
      return { message: `The server answered with status ${response.status}. Try again.` };
    }
  }

  // Engines of earlier releases do not know `return_acceptance`. Their answers are shown without marks.
  async function begin(body, view) {
    const response = await post({ ...body, return_acceptance: true });
    if (response.ok) return response;
    const error = await errorOf(response);
    if (error.code !== "unknown_parameter" || error.param !== "return_acceptance") throw new Error(error.message);
    view.isMarked = false;
    const again = await post(body);
    if (!again.ok) throw new Error((await errorOf(again)).message);
    return again;
  }

  async function* chunksOf(response) {
    const decoder = new TextDecoder();
    let buffer = "";
    for (const reader = response.body.getReader(); ; ) {
      const { done, value } = await reader.read();
      if (done) return;
      const events = (buffer + decoder.decode(value, { stream: true })).split("\n\n");
      buffer = events.pop();
      for (const event of events) {
        const data = event.replace(/^data: /, "");
        if (data === "[DONE]") return;
        const chunk = JSON.parse(data);
        if (chunk.error) throw new Error(chunk.error.message);
        yield chunk;
      }
    }
  }

  function add(parent, tag, className, text = "") {
    const element = document.createElement(tag);
    element.className = className;
    element.append(text);
    parent.append(element);
    return element;
  }

  function exchange(message) {
    const figure = add(log, "figure", "console-example");
    add(figure, "p", "console-prompt", message);
    return {
      figure,
      thought: add(figure, "p", "console-thought"),
      answer: add(figure, "p", "console-answer"),
      facts: add(figure, "p", "console-note", "Waiting for the first token …"),
      isMarked: true,
      sentAt: performance.now(),
    };
  }

  function append(parent, text, accepted) {
    if (accepted) {
      if (parent.lastChild?.nodeName === "MARK") parent.lastChild.append(text);
      else add(parent, "mark", "console-accepted", text);
    } else parent.append(text);
  }

  function show(view, chunk) {
    if (chunk.usage && !chunk.choices.length) Object.assign(view, { usage: chunk.usage, metrics: chunk.metrics });
    for (const { delta, acceptance, finish_reason: reason } of chunk.choices) {
      view.reason = reason ?? view.reason;
      const text = delta.reasoning_content || delta.content;
      if (!text) continue;
      view.lastAt = performance.now();
      view.firstAt ??= view.lastAt;
      view.facts.textContent = "";
      const parent = delta.reasoning_content ? view.thought : view.answer;
      for (const part of acceptance ?? [{ text, accepted: false }]) append(parent, part.text, part.accepted);
    }
  }

  const rounded = (value, digits) => value.toLocaleString("en", { maximumFractionDigits: digits });

  function conclude(view) {
    const facts = [], tokens = view.usage?.completion_tokens, seconds = (view.lastAt - view.firstAt) / 1000;
    const length = view.metrics?.speculative_decoding?.mean_acceptance_length;
    if (tokens !== undefined) facts.push(`${rounded(tokens, 0)} tokens`);
    if (tokens > 1 && seconds > 0) facts.push(`${rounded((tokens - 1) / seconds, 1)} tokens per second`);
    if (length !== undefined) facts.push(`${rounded(length, 2)} tokens per verification pass`);
    if (view.firstAt) facts.push(`${rounded((view.firstAt - view.sentAt) / 1000, 2)} seconds to the first token`);
    if (view.reason === "length") facts.push("cut at the limit of tokens");
    if (running.signal.aborted) facts.push("stopped");
    if (!view.isMarked) facts.push("the engine is of an earlier release and does not say which tokens were accepted");
    view.facts.textContent = facts.join(", ");
  }

  async function answer(message) {
    const asked = [...messages, { role: "user", content: message }], view = exchange(message);
    const body = { model: chat.dataset.model, messages: asked, stream: true };
    body.stream_options = { include_usage: true };
    body.max_tokens = form.elements.tokens.valueAsNumber;
    try {
      for await (const chunk of chunksOf(await begin(body, view))) show(view, chunk);
    } catch (error) {
      if (!running.signal.aborted) problem.textContent = error.message;
    }
    conclude(view);
    if (view.answer.textContent) messages = [...asked, { role: "assistant", content: view.answer.textContent }];
    else if (!view.firstAt) {
      view.figure.remove();
      form.elements.message.value = message; // it was not answered
    }
  }

  function setRunning(is) {
    send.disabled = restart.disabled = is;
    stop.hidden = !is;
  }

  async function submit(event) {
    event.preventDefault();
    const message = form.elements.message.value.trim();
    if (running || !message) return;
    running = new AbortController();
    setRunning(true);
    problem.textContent = form.elements.message.value = "";
    try {
      await answer(message);
    } finally {
      running = null;
      setRunning(false);
    }
  }

  form.addEventListener("submit", submit);
  form.elements.message.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    form.requestSubmit();
  });
  stop.addEventListener("click", () => running?.abort());
  restart.addEventListener("click", () => {
    messages = [];
    log.replaceChildren();
    problem.textContent = "";
  });
})();
