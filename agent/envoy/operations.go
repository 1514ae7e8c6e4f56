package envoy

import (
	"context"
	"fmt"
	"net/url"
	"strings"
)

// FailHealthcheck makes Envoy announce its end: /ready and health-check filters return 503, and
// responses carry Connection: close or GOAWAY. Envoy still accepts connections.
func (a *Admin) FailHealthcheck(ctx context.Context) error {
	return a.act(ctx, "/healthcheck/fail")
}

// OKHealthcheck reverts FailHealthcheck.
func (a *Admin) OKHealthcheck(ctx context.Context) error { return a.act(ctx, "/healthcheck/ok") }

// DrainListeners closes the listeners at once, or with graceful after the drain time. Requests in
// flight complete. This epoch never opens listeners again.
func (a *Admin) DrainListeners(ctx context.Context, graceful bool) error {
	if graceful {
		return a.act(ctx, "/drain_listeners?graceful")
	}
	return a.act(ctx, "/drain_listeners")
}

// ReopenLogs makes Envoy reopen its access-log files, as needed after a log rotation.
func (a *Admin) ReopenLogs(ctx context.Context) error { return a.act(ctx, "/reopen_logs") }

func (a *Admin) act(ctx context.Context, path string) error {
	_, err := a.Post(ctx, path)
	return err
}

// SetLogLevel sets the level (trace, debug, info, warning, error, critical, off) of a component, or
// of all components if component is "".
func (a *Admin) SetLogLevel(ctx context.Context, component, level string) error {
	if component == "" {
		component = "level"
	}
	return a.act(ctx, "/logging?"+url.QueryEscape(component)+"="+url.QueryEscape(level))
}

// SetLogLevels sets the level of all components unless level is "", then those of single
// components, in the format of --component-log-level ("upstream:debug,misc:error").
func (a *Admin) SetLogLevels(ctx context.Context, level, components string) error {
	if level != "" {
		if err := a.SetLogLevel(ctx, "", level); err != nil {
			return err
		}
	}
	if components == "" {
		return nil
	}
	for pair := range strings.SplitSeq(components, ",") {
		component, level, ok := strings.Cut(pair, ":")
		if !ok {
			return fmt.Errorf("component log level %q is not of the form COMPONENT:LEVEL", pair)
		}
		if err := a.SetLogLevel(ctx, component, level); err != nil {
			return err
		}
	}
	return nil
}

// LogLevels returns the level of each component.
func (a *Admin) LogLevels(ctx context.Context) (map[string]string, error) {
	body, err := a.Post(ctx, "/logging")
	if err != nil {
		return nil, err
	}
	levels := map[string]string{}
	for line := range strings.Lines(string(body)) {
		if component, level, ok := strings.Cut(strings.TrimSpace(line), ": "); ok {
			levels[component] = level
		}
	}
	return levels, nil
}
