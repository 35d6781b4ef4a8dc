/* Asks for the next step of a bulk action. Without this file the button does. */
"use strict";

document.querySelector("form[data-continues]")?.submit();
