/* Requests the next step of a bulk action; without this file the user presses the button. */
"use strict";

document.querySelector("form[data-continues]")?.submit();
