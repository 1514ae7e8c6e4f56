package web

import (
	"bytes"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"html/template"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"outrider.org/outrider/agent/redact"
)

//go:embed page.html
var pageText string

//go:embed style.css
var style []byte

var page = template.Must(template.New("page").Funcs(template.FuncMap{
	"time": func(t time.Time) string {
		if t.IsZero() {
			return "–"
		}
		return t.UTC().Format("2006-01-02 15:04:05 UTC")
	},
	"past": func(t time.Time) bool { return !t.IsZero() && t.Before(time.Now()) },
	"path": func(list, query string, page int) template.URL {
		values := url.Values{"page": {strconv.Itoa(page)}}
		if query != "" {
			values.Set("q", query)
		}
		return template.URL("/" + list + "?" + values.Encode()) //nolint:gosec // it is encoded
	},
	"add": func(x, y int) int { return x + y },
	"of":  func(name, only string, list any) any { return listOf{name, only, list} },
}).Parse(pageText))

// listOf is the argument of the template for a list.
type listOf struct {
	Name, Only string
	List       any
}

const (
	// readTime bounds the time that a client may need to receive a response.
	readTime = 10 * time.Second
	// waitTime bounds the wait for a snapshot, which one request at a time makes.
	waitTime = 15 * time.Second
	// mostQuery is the maximum length of a search query, in bytes.
	mostQuery = 256
)

// Register adds the handlers of all pages to routes. guard wraps each handler; it refuses clients
// without permission.
func (s *Server) Register(routes *http.ServeMux, guard func(http.Handler) http.Handler) {
	for _, list := range []string{"", hostList, serviceList, problemList} {
		pattern := "GET /" + list
		if list == "" {
			pattern += "{$}"
		}
		routes.Handle(pattern, guard(s.serve(list, render)))
		name := list
		if name == "" {
			name = "status"
		}
		routes.Handle("GET /"+name+".json", guard(s.serve(list, asJSON)))
	}
	routes.Handle("GET /style.css", guard(http.HandlerFunc(
		func(w http.ResponseWriter, _ *http.Request) {
			send(w, "text/css; charset=utf-8", style)
		})))
}

// serve returns the handler for a list, or for all lists if only is "".
func (s *Server) serve(only string,
	encode func(only string, text []byte) (contentType string, body []byte, err error)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		values := r.URL.Query()
		number, err := strconv.Atoi(values.Get("page"))
		if err != nil {
			number = 1
		}
		query := values.Get("q")
		if len(query) > mostQuery {
			http.Error(w, fmt.Sprintf("q has more than %d bytes", mostQuery), http.StatusBadRequest)
			return
		}
		ctx, cancel := context.WithTimeout(r.Context(), waitTime)
		defer cancel()
		made, err := s.answer(ctx, request{only: only, query: strings.ToLower(query), page: number})
		if errors.Is(err, context.DeadlineExceeded) {
			http.Error(w, "others are answered: try again", http.StatusServiceUnavailable)
			return
		}
		var contentType string
		var body []byte
		if err == nil {
			contentType, body, err = encode(only, redacted(made))
		}
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		send(w, contentType, body)
	})
}

// send sends a response. Its headers forbid other sites to read or embed it, and browsers to cache
// it.
func send(w http.ResponseWriter, contentType string, body []byte) {
	for name, value := range map[string]string{
		"Content-Type": contentType, "Cache-Control": "no-store",
		"X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer",
		"X-Frame-Options": "DENY", "Cross-Origin-Resource-Policy": "same-origin",
		"Cross-Origin-Opener-Policy": "same-origin",
		"Content-Security-Policy": "default-src 'none'; style-src 'self'; form-action 'self'; " +
			"base-uri 'none'; frame-ancestors 'none'"} {
		w.Header().Set(name, value)
	}
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(readTime))
	_, _ = w.Write(body) // an error means that the client has disconnected
}

// redacted returns an answer as JSON, without credentials.
func redacted(a *answer) []byte {
	text, err := json.Marshal(a)
	if err != nil {
		panic(err) // impossible: all types in answer can be encoded
	}
	var out bytes.Buffer
	r := redact.New(&out)
	// Writing to a bytes.Buffer cannot fail.
	_, _ = r.Write(text)
	_ = r.Flush()
	return out.Bytes()
}

func asJSON(_ string, text []byte) (string, []byte, error) { return "application/json", text, nil }

// render returns the HTML page for an answer that is encoded as JSON.
func render(only string, text []byte) (contentType string, body []byte, err error) {
	shown := struct {
		answer
		Only string
	}{Only: only}
	if err := json.Unmarshal(text, &shown.answer); err != nil {
		return "", nil, fmt.Errorf("decode the answer: %w", err)
	}
	var out bytes.Buffer
	if err := page.Execute(&out, shown); err != nil {
		return "", nil, fmt.Errorf("render the page: %w", err)
	}
	return "text/html; charset=utf-8", out.Bytes(), nil
}
