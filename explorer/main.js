// Everything is there: show the page.
Explorer.page.start();
