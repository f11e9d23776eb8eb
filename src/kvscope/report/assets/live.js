// Each chart that was drawn when the page was made is drawn again by the bundle, with what the pointer is over said
// beside it. The drawing that was there stays until the new one is, and comes back where a browser cannot draw it, and
// for print.
(function () {
  "use strict";
  function draw(data) {
    var still = data.previousElementSibling;
    var live = document.createElement("div");
    live.className = "live";
    live.hidden = true;
    still.after(live);
    var options = {
      mode: "vega-lite", ast: true, actions: false, defaultStyle: false, renderer: "svg", tooltip: { theme: "kvscope" }
    };
    kvscopeEmbed(live, JSON.parse(data.textContent), options).then(function () {
      live.hidden = false;
      still.classList.add("still");
    }, function (error) {
      live.remove();
      console.error("kvscope: a chart stays as it was drawn: " + error);
    });
  }
  document.querySelectorAll("script.live-data").forEach(draw);
})();
