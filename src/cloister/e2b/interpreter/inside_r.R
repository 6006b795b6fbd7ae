# Runs inside a sandbox: one session of R, with nothing but what R itself brings.
# A cell comes over a loopback connection, as one line of words in hexadecimal: the mark, the
# directory, the code, and pairs of names and values. What comes of it goes to standard output: a
# mark, and an object of JSON on the rest of the line.
local({
  Sys.unsetenv("CLOISTER_SESSION")
  mark <- ""

  text_of <- function(hex) {
    if (!nzchar(hex)) return("")
    at <- seq.int(1L, nchar(hex), 2L)
    text <- rawToChar(as.raw(strtoi(substring(hex, at, at + 1L), 16L)))
    Encoding(text) <- "UTF-8"
    text
  }

  quoted <- function(text) {
    text <- enc2utf8(paste(as.character(text), collapse = "\n"))
    if (!validUTF8(text)) text <- iconv(text, "UTF-8", "UTF-8", sub = "?")
    text <- gsub("\\", "\\\\", text, fixed = TRUE)
    text <- gsub("\"", "\\\"", text, fixed = TRUE)
    codes <- utf8ToInt(text)
    if (length(codes) > 0L && (max(codes) > 126L || min(codes) < 32L)) {
      # Whatever the locale is, what is printed is ASCII.
      odd <- codes < 32L | codes > 126L
      parts <- intToUtf8(codes, multiple = TRUE)
      parts[odd] <- vapply(codes[odd], escaped, "")
      text <- paste(parts, collapse = "")
    }
    paste0("\"", text, "\"")
  }

  escaped <- function(code) {
    if (code < 65536L) return(sprintf("\\u%04x", code))
    code <- code - 65536L
    sprintf("\\u%04x\\u%04x", 55296L + code %/% 1024L, 56320L + code %% 1024L)
  }

  object <- function(values) {
    paste0("{", paste0(vapply(names(values), quoted, ""), ":", unlist(values), collapse = ","), "}")
  }

  say <- function(values) {
    cat(mark, object(values), "\n", sep = "")
    flush(stdout())
  }

  base64 <- function(bytes) {
    alphabet <- c(LETTERS, letters, 0:9, "+", "/")
    missing <- (3L - length(bytes) %% 3L) %% 3L
    whole <- matrix(as.integer(c(bytes, as.raw(rep(0L, missing)))), nrow = 3L)
    bits <- whole[1L, ] * 65536L + whole[2L, ] * 256L + whole[3L, ]
    four <- rbind(bits %/% 262144L, bits %/% 4096L %% 64L, bits %/% 64L %% 64L, bits %% 64L)
    letters_of <- alphabet[four + 1L]
    if (missing > 0L) letters_of[length(letters_of) - seq_len(missing) + 1L] <- "="
    paste(letters_of, collapse = "")
  }

  show_data <- function(data, is_main = FALSE) {
    data <- data[!vapply(data, is.null, NA)]
    values <- lapply(data, function(value) if (is.raw(value)) quoted(base64(value)) else quoted(value))
    if (length(values) > 0L) {
      say(list(type = "\"result\"", is_main = if (is_main) "true" else "false", data = object(values)))
    }
  }
  # What IRdisplay, and with it html and other widgets, shows things by.
  options(jupyter.base_display_func = function(data, metadata = NULL) show_data(data))

  drawn_as <- function(plot, device, suffix) {
    path <- tempfile(fileext = suffix)
    on.exit(unlink(path))
    tryCatch({
      device(path)
      tryCatch(grDevices::replayPlot(plot), finally = grDevices::dev.off())
      readBin(path, "raw", file.size(path))
    }, error = function(error) NULL)
  }

  as_png <- function(path) {
    type <- if (capabilities("cairo")) "cairo" else getOption("bitmapType")
    grDevices::png(path, width = 7, height = 7, units = "in", res = 120, type = type)
  }
  as_svg <- function(path) grDevices::svg(path, width = 7, height = 7)

  has_page <- FALSE
  show_plot <- function() {
    if (!has_page || is.null(grDevices::dev.list())) return(invisible())
    has_page <<- FALSE
    plot <- tryCatch(grDevices::recordPlot(), error = function(error) NULL)
    if (is.null(plot) || is.null(plot[[1L]])) return(invisible())
    wanted <- getOption("jupyter.plot_mimetypes", "image/png")
    own <- grDevices::dev.cur()
    data <- list()
    if ("image/png" %in% wanted) data[["image/png"]] <- drawn_as(plot, as_png, ".png")
    if ("image/svg+xml" %in% wanted) {
      svg <- drawn_as(plot, as_svg, ".svg")
      if (!is.null(svg)) data[["image/svg+xml"]] <- rawToChar(svg)
    }
    if (own %in% grDevices::dev.list()) grDevices::dev.set(own)
    show_data(data)
  }

  # A plot is recorded, and drawn when the next begins or the cell ends.
  options(device = function(...) {
    grDevices::pdf(NULL, width = 7, height = 7)
    grDevices::dev.control(displaylist = "enable")
  })
  setHook("before.plot.new", function(...) {
    # Where a page has several figures, it is shown once it is full.
    if (!is.null(grDevices::dev.list()) && graphics::par("page")) show_plot()
    has_page <<- TRUE
  })
  setHook("before.grid.newpage", function(...) {
    show_plot()
    has_page <<- TRUE
  })

  show_value <- function(value, is_main) {
    if (inherits(value, c("ggplot", "trellis", "recordedplot", "gtable", "grob"))) {
      print(value)
      return(invisible())
    }
    data <- list("text/plain" = utils::capture.output(print(value)))
    if ((is.data.frame(value) || is.matrix(value)) && requireNamespace("repr", quietly = TRUE)) {
      data[["text/html"]] <- tryCatch(repr::repr_html(value), error = function(error) NULL)
      data[["text/markdown"]] <- tryCatch(repr::repr_markdown(value), error = function(error) NULL)
    }
    show_data(data, is_main)
  }

  evaluate <- function(code) {
    expressions <- parse(text = code, keep.source = TRUE)
    last <- length(expressions)
    for (index in seq_along(expressions)) {
      found <- withVisible(eval(expressions[[index]], globalenv()))
      if (found$visible) show_value(found$value, index == last)
    }
  }

  fail <- function(name, value, traceback) {
    say(list(type = "\"error\"", name = quoted(name), value = quoted(value), traceback = quoted(traceback)))
  }

  run <- function(code) {
    calls <- character()
    tryCatch(
      withCallingHandlers(evaluate(code),
        warning = function(warning) {
          from <- conditionCall(warning)
          where <- if (is.null(from)) "" else paste0(" in ", deparse(from, nlines = 1L)[1L])
          cat("Warning", where, ": ", conditionMessage(warning), "\n", sep = "", file = stderr())
          tryInvokeRestart("muffleWarning")
        },
        error = function(error) {
          found <- vapply(sys.calls(), function(call) deparse(call, nlines = 1L)[1L], "")
          begun <- match("eval(expressions[[index]], globalenv())", found, 0L)
          calls <<- if (begun > 0L) utils::head(found[-seq_len(begun + 1L)], -2L) else character()
        }
      ),
      error = function(error) {
        from <- conditionCall(error)
        where <- if (is.null(from)) "Error" else paste("Error in", deparse(from, nlines = 1L)[1L])
        message <- conditionMessage(error)
        fail(class(error)[1L], message, c(paste0(where, ": ", message), calls))
      },
      interrupt = function(interrupt) fail("KeyboardInterrupt", "interrupted", "interrupted")
    )
    show_plot()
    has_page <<- FALSE
    while (!is.null(grDevices::dev.list())) grDevices::dev.off()
  }

  with_variables <- function(words, act) {
    if (length(words) == 0L) return(act())
    names <- words[c(TRUE, FALSE)]
    before <- Sys.getenv(names, unset = NA, names = TRUE)
    on.exit({
      Sys.unsetenv(names[is.na(before)])
      if (!all(is.na(before))) do.call(Sys.setenv, as.list(before[!is.na(before)]))
    })
    do.call(Sys.setenv, stats::setNames(as.list(words[c(FALSE, TRUE)]), names))
    act()
  }

  next_line <- function() {
    repeat {
      # One that comes late, after its cell has ended, is for nobody.
      line <- tryCatch(readLines(cells, 1L), interrupt = function(interrupt) NULL)
      if (!is.null(line)) return(line)
    }
  }

  repeat {
    port <- sample(20000:60000, 1L)
    server <- tryCatch(serverSocket(port), error = function(error) NULL)
    if (!is.null(server)) break
  }
  # The seed of whoever runs code here begins with their own code.
  rm(".Random.seed", envir = globalenv())
  cat("{\"port\": ", port, "}\n", sep = "")
  flush(stdout())
  cells <- socketAccept(server, blocking = TRUE, open = "r", timeout = 30)
  socketTimeout(cells, 2147483L)
  close(server)

  repeat {
    line <- next_line()
    if (length(line) == 0L) break
    words <- vapply(strsplit(paste0(line, " ."), " ", fixed = TRUE)[[1L]], function(word) {
      if (word == ".") "" else text_of(word)
    }, "", USE.NAMES = FALSE)
    words <- words[-length(words)]
    mark <- words[1L]
    if (nzchar(words[2L])) tryCatch(setwd(words[2L]), error = function(error) message(conditionMessage(error)))
    tryCatch(with_variables(words[-(1:3)], function() run(words[3L])), interrupt = function(interrupt) NULL)
    flush(stdout())
    cat(mark, "0\n", sep = "", file = stderr())
    cat(mark, "0\n", sep = "")
    flush(stdout())
  }
})
