package validate

import (
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"

	networking "istio.io/api/networking/v1alpha3"
)

func (c *checker) redirect(field string, r *networking.HTTPRedirect,
	matches []*networking.HTTPMatchRequest) {
	if r == nil {
		return
	}
	if r.Uri == "" && r.Authority == "" && r.RedirectPort == nil && r.Scheme == "" &&
		r.PrefixRewrite == "" {
		c.fail(field, "the redirect changes nothing", "write uri, authority, port or scheme in it")
	}
	if r.PrefixRewrite != "" {
		if r.Uri != "" {
			c.fail(field+".uri", "excludes prefixRewrite, and both are given", "keep one")
		}
		for _, m := range matches {
			if m.GetUri() != nil && m.Uri.GetPrefix() == "" {
				c.fail(field+".prefixRewrite", "needs prefix in all matches of uri",
					"write prefix there, or uri here")
			}
		}
	}
	c.oneLine(field+".uri", r.Uri)
	c.oneLine(field+".authority", r.Authority)
	c.oneLine(field+".prefixRewrite", r.PrefixRewrite)
	if r.Scheme != "" && r.Scheme != "http" && r.Scheme != "https" {
		c.fail(field+".scheme", fmt.Sprintf("%q is no scheme", r.Scheme), "write http or https")
	}
	switch r.RedirectCode {
	case 0, http.StatusMovedPermanently, http.StatusFound, http.StatusSeeOther,
		http.StatusTemporaryRedirect, http.StatusPermanentRedirect:
	default:
		c.fail(field+".redirectCode", fmt.Sprintf("%d is no redirect that Envoy sends",
			r.RedirectCode), "write 301, 302, 303, 307 or 308")
	}
	if port, ok := r.RedirectPort.(*networking.HTTPRedirect_Port); ok {
		c.port(field+".port", port.Port)
	}
}

func (c *checker) directResponse(field string, d *networking.HTTPDirectResponse) {
	if d == nil {
		return
	}
	if d.Status < 200 || d.Status > 599 {
		c.fail(field+".status", fmt.Sprintf("%d is no status of a response", d.Status),
			"write a number from 200 to 599")
	}
	// sizes of a response's body in bytes: above large is a warning, above largest an error
	const large, largest = 100 << 10, 1 << 20
	switch size := max(len(d.GetBody().GetString_()), len(d.GetBody().GetBytes())); {
	case size > largest:
		c.fail(field+".body", fmt.Sprintf("has %d bytes, more than %d", size, largest),
			"let a service answer")
	case size > large:
		c.warn(field+".body", fmt.Sprintf("has %d bytes, which every proxy keeps in memory", size),
			"let a service answer")
	}
}

func (c *checker) rewrite(field string, r *networking.HTTPRewrite) {
	if r == nil {
		return
	}
	if r.Uri == "" && r.Authority == "" && r.UriRegexRewrite == nil {
		c.fail(field, "the rewrite changes nothing", "write uri or authority in it")
	}
	c.oneLine(field+".uri", r.Uri)
	c.oneLine(field+".authority", r.Authority)
	if r.UriRegexRewrite != nil {
		c.oneLine(field+".uriRegexRewrite.rewrite", r.UriRegexRewrite.Rewrite)
		if r.Uri != "" {
			c.fail(field+".uri", "excludes uriRegexRewrite, and both are given", "keep one")
		}
		c.regex(field+".uriRegexRewrite.match", r.UriRegexRewrite.Match)
		c.substitution(field+".uriRegexRewrite", r.UriRegexRewrite)
	}
}

// substitution checks that the regular expression has the groups to which the rewrite refers as \0
// to \9.
func (c *checker) substitution(field string, r *networking.RegexRewrite) {
	if r.Rewrite == "" {
		c.fail(field+".rewrite", "is empty", "write what takes the place of the match")
	}
	expression, err := regexp.Compile(r.Match)
	if err != nil {
		return // an invalid expression was reported before
	}
	for i := 0; i+1 < len(r.Rewrite); i++ {
		if r.Rewrite[i] != '\\' {
			continue
		}
		i++
		switch next := r.Rewrite[i]; {
		case next >= '0' && next <= '9':
			if group := int(next - '0'); group > expression.NumSubexp() {
				c.fail(field+".rewrite",
					fmt.Sprintf("\\%d stands for nothing: the expression has %d groups", group,
						expression.NumSubexp()), "add a group in parentheses")
			}
		case next != '\\':
			c.fail(field+".rewrite", fmt.Sprintf("\\%c stands for nothing", next),
				`write \\ for a backslash`)
		}
	}
}

// retryConditions are Envoy's retry conditions for HTTP and gRPC.
var retryConditions = []string{"5xx", "gateway-error", "reset", "reset-before-request",
	"connect-failure", "envoy-ratelimited", "retriable-4xx",
	"refused-stream", "retriable-status-codes", "retriable-headers", "http3-post-connect-failure",
	"cancelled", "deadline-exceeded", "internal",
	"resource-exhausted", "unavailable"}

func (c *checker) retries(field string, r *networking.HTTPRetry) {
	if r == nil {
		return
	}
	c.natural(field+".attempts", r.Attempts)
	switch {
	case r.Attempts != 0:
	case r.PerTryTimeout != nil, r.RetryOn != "", r.RetryRemoteLocalities != nil:
		c.fail(field+".attempts", "0 turns retries off, and the rest makes no sense",
			"remove the rest, or write a number")
	case r.Backoff != nil, r.RetryIgnorePreviousHosts != nil:
		c.warn(field+".attempts", "0 turns retries off, and the rest has no effect",
			"remove the rest, or write a number")
	}
	c.duration(field+".perTryTimeout", r.PerTryTimeout, false)
	c.duration(field+".backoff", r.Backoff, false)
	if r.RetryOn == "" {
		return
	}
	for _, part := range strings.Split(r.RetryOn, ",") {
		code, err := strconv.Atoi(part)
		if (err != nil || http.StatusText(code) == "") && !slices.Contains(retryConditions, part) {
			c.fail(field+".retryOn", fmt.Sprintf("%q is no condition", part),
				"write, with commas and without spaces, status codes or some of "+strings.Join(
					retryConditions, ", "))
		}
	}
}
