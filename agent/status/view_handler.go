package status

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httputil"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"outrider.org/outrider/agent/admission"
)

// readable lists the paths of Envoy's admin interface whose GET changes nothing (Envoy 1.40,
// source/server/admin/admin.cc: handlers with mutates_server_state false). The profilers, heap dump
// and tap are excluded: they are expensive or disclose data.
var readable = []string{
	"/", "/certs", "/clusters", "/config_dump", "/contention", "/help", "/hot_restart_version",
	"/init_dump", "/listeners",
	"/memory", "/ready", "/runtime", "/server_info", "/stats", "/stats/prometheus",
	"/stats/recentlookups",
}

// readTime bounds the time in which a client with read access must read an answer.
const readTime = 2 * time.Minute

// redacted lists the paths whose answer is JSON that may contain credentials.
var redacted = []string{"/config_dump", "/init_dump", "/server_info"}

// handler returns the handler of the view with the configured access. It refuses requests whose
// Host header names another host.
func (v *AdminView) handler() http.Handler {
	pass := ownPage(v.reverseProxy(v.dumps))
	read := v.readOnlyHandler()
	return ownHost(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if v.full.Load() {
			pass.ServeHTTP(w, r)
			return
		}
		read.ServeHTTP(w, r)
	}))
}

// readOnlyHandler returns the handler of the view with admin_access = "read", regardless of the
// configuration. Its answers may be shown to every user.
func (v *AdminView) readOnlyHandler() http.Handler {
	pass := v.reverseProxy(redactedDumps{v.dumps})
	return admission.LimitBody(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		// Every user may read, so bound the time that a slow reader holds a connection.
		_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(readTime))
		if r.Method != http.MethodGet && r.Method != http.MethodHead {
			v.refuse(w, r, "requests that change something are refused")
			return
		}
		if !slices.Contains(readable, r.URL.Path) {
			v.refuse(w, r, fmt.Sprintf("%s is not among what can be read (%s)", r.URL.Path,
				strings.Join(readable, " ")))
			return
		}
		out := r.Clone(r.Context())
		// Only path and query reach Envoy.
		out.URL = &url.URL{Path: r.URL.Path, RawQuery: r.URL.RawQuery}
		out.Body = http.NoBody
		out.ContentLength = 0
		out.Header.Del("Accept-Encoding") // compressed answers cannot be redacted
		pass.ServeHTTP(w, out)
	}))
}

// Get returns the live epoch's answer to a GET, with credentials removed, and the number of the
// epoch. The caller closes the body. The error's text is a sentence.
func (v *AdminView) Get(ctx context.Context, path, query string) (*http.Response, int, error) {
	target := url.URL{Scheme: "http", Host: "admin", Path: path, RawQuery: query}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, target.String(), nil)
	if err != nil {
		return nil, 0, fmt.Errorf("request %s from Envoy's admin interface: %w", path, err)
	}
	response, err := redactedDumps{v.dumps}.RoundTrip(request)
	if err != nil {
		return nil, 0, err
	}
	epoch, _ := strconv.Atoi(response.Header.Get(epochHeader)) // live.RoundTrip sets a number
	return response, epoch, nil
}

// redactResponse removes credentials from the body of an answer as it is read. Only answers with
// status 200 are JSON.
func redactResponse(response *http.Response) {
	if response.StatusCode != http.StatusOK || !slices.Contains(redacted,
		response.Request.URL.Path) {
		return
	}
	response.Body = newRedactedBody(response.Body)
	response.ContentLength = -1
	response.Header.Del("Content-Length")
}

func (v *AdminView) refuse(w http.ResponseWriter, r *http.Request, why string) {
	say(w, http.StatusForbidden, fmt.Sprintf(
		`%s %s: with admin_access = "read" %s; admin_access = "full" in [envoy] allows everything, `+
			"to every local user",
		r.Method, r.URL.Path, why))
}

// reverseProxy returns a proxy to the live epoch.
func (v *AdminView) reverseProxy(transport http.RoundTripper) *httputil.ReverseProxy {
	return &httputil.ReverseProxy{
		Rewrite: func(request *httputil.ProxyRequest) {
			request.Out.URL.Scheme = "http"
			request.Out.URL.Host = "admin"
			request.Out.Host = "admin"
			if request.Out.ContentLength == 0 {
				request.Out.Body = nil // live.RoundTrip retries only requests without a body
			}
		},
		Transport: transport,
		ErrorHandler: func(w http.ResponseWriter, r *http.Request, err error) {
			if unavailable, ok := errors.AsType[*unavailableError](err); ok {
				say(w, http.StatusServiceUnavailable, unavailable.reason)
				return
			}
			if r.Context().Err() == nil {
				v.options.Logger.Debug("cannot forward request to Envoy's admin interface",
					"path", r.URL.Path,
					"error", err)
			}
			say(w, http.StatusBadGateway, err.Error())
		},
		// Flush pages that grow (stats?format=html with active updates) immediately.
		FlushInterval: -1,
	}
}
