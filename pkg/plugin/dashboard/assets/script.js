// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Receives the part of the page that changes, and writes only the difference, so that focus,
// selection and what is open stay. Without this script the page is complete but still.
"use strict";

(() => {
  const live = document.getElementById("live");
  const connection = document.getElementById("connection");

  const keyOf = (node) => (node.nodeType === Node.ELEMENT_NODE && node.getAttribute("data-key")) || "";

  const alike = (a, b) => a.nodeType === b.nodeType && a.nodeName === b.nodeName && keyOf(a) === keyOf(b);

  // counterpart returns the node that becomes wanted: the next one, or one with its key
  // further on.
  function counterpart(next, wanted) {
    if (next && alike(next, wanted)) return next;
    if (!keyOf(wanted)) return null;
    while (next && !alike(next, wanted)) next = next.nextSibling;
    return next;
  }

  function updateAttributes(current, wanted) {
    // Whether an element is open is decided by the user.
    const ours = (name) => !(name === "open" && current.nodeName === "DETAILS");
    for (const name of current.getAttributeNames()) {
      if (ours(name) && !wanted.hasAttribute(name)) current.removeAttribute(name);
    }
    for (const name of wanted.getAttributeNames()) {
      const value = wanted.getAttribute(name);
      if (ours(name) && current.getAttribute(name) !== value) current.setAttribute(name, value);
    }
  }

  function update(current, wanted) {
    if (current.nodeType !== Node.ELEMENT_NODE) {
      if (current.nodeValue !== wanted.nodeValue) current.nodeValue = wanted.nodeValue;
      return;
    }
    updateAttributes(current, wanted);
    let next = current.firstChild;
    for (const child of wanted.childNodes) {
      const found = counterpart(next, child);
      if (!found) {
        current.insertBefore(document.importNode(child, true), next);
        continue;
      }
      while (next !== found) {
        const removed = next;
        next = next.nextSibling;
        removed.remove();
      }
      update(found, child);
      next = found.nextSibling;
    }
    while (next) {
      const removed = next;
      next = next.nextSibling;
      removed.remove();
    }
  }

  let source = null;

  function connect() {
    source = new EventSource("/updates");
    source.onmessage = (message) => {
      const wanted = new DOMParser().parseFromString(message.data, "text/html").getElementById("live");
      if (wanted) update(live, wanted);
    };
    source.onopen = () => { connection.textContent = ""; };
    source.onerror = () => {
      if (connection.textContent === "") {
        connection.textContent = "No connection to kubectl nstance since " + new Date().toLocaleTimeString() +
          ". Shown is what was received before.";
      }
      // A browser does not try again after a reply that is no stream.
      if (source.readyState === EventSource.CLOSED) setTimeout(reconnect, 2000);
    };
  }

  function reconnect() {
    source.close();
    if (!document.hidden) connect();
  }

  // A page that is not visible needs no updates, and a browser opens only a few connections
  // to a server.
  document.addEventListener("visibilitychange", () => {
    if (document.hidden) source.close();
    else reconnect();
  });

  connect();
})();
