package bus

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"outrider.org/outrider/agent/api"
)

// reloadIfChanged is the flag of Reload that starts a new epoch only if a change requires one.
const reloadIfChanged uint64 = 1

// ownHandlers returns the methods of the agent's own interfaces.
func (s *session) ownHandlers() map[string]map[string]handler {
	return map[string]map[string]handler{
		managerInterface: {
			"Reload":      s.reload,
			"Drain":       s.drain,
			"Undrain":     s.undrain,
			"CheckConfig": s.checkConfig,
			"SetLogLevel": s.setLogLevel,
			"GetEpoch":    s.getEpoch,
			"ListEpochs":  s.listEpochs,
			"DumpConfig":  s.dumpConfig,
		},
		epochInterface:  {"Abort": s.abort},
		secretInterface: {},
	}
}

func (s *session) reload(ctx context.Context, c *call) ([]any, error) {
	flags := c.args[0].(uint64)
	if flags&^reloadIfChanged != 0 {
		return nil, invalidArgumentError(fmt.Sprintf("Reload takes only flag 1, not %#x", flags))
	}
	s.order.RLock() // holds back ReloadFinished until the ID is sent
	defer s.order.RUnlock()
	id, err := s.options.Backend.BeginReload(ctx, flags&reloadIfChanged != 0)
	if err != nil {
		return nil, err
	}
	s.answer(c, []any{id}, nil)
	c.silent = true // the reply is already sent
	return nil, nil
}

func (s *session) drain(ctx context.Context, c *call) ([]any, error) {
	if flags := c.args[0].(uint64); flags != 0 {
		return nil, invalidArgumentError("Drain takes no flags")
	}
	return nil, s.options.Backend.BeginDrain(ctx)
}

func (s *session) undrain(ctx context.Context, _ *call) ([]any, error) {
	_, err := s.options.Backend.Undrain(ctx, func(api.Progress) {})
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return nil, refusedError("the undrain continues, but no new epoch is live yet; " +
			"the property State shows its end")
	}
	return nil, err
}

func (s *session) checkConfig(ctx context.Context, c *call) ([]any, error) {
	path := c.args[0].(string)
	if path != "" && !filepath.IsAbs(path) {
		return nil, invalidArgumentError(fmt.Sprintf("the path %q is not absolute", path))
	}
	problems, err := s.options.Backend.CheckConfig(ctx, path)
	return []any{len(problems) == 0, texts(problems)}, err
}

func (s *session) setLogLevel(ctx context.Context, c *call) ([]any, error) {
	scope, level := c.args[0].(string), c.args[1].(string)
	var levels api.LogLevels
	component, isComponent := strings.CutPrefix(scope, "envoy:")
	switch {
	case scope == "agent":
		levels.Agent = level
	case scope == "envoy":
		levels.Envoy = level
	case isComponent && component != "":
		levels.Components = map[string]string{component: level}
	default:
		return nil, invalidArgumentError(
			fmt.Sprintf("there is no scope %q: it is agent, envoy or envoy:COMPONENT", scope))
	}
	_, err := s.options.Backend.SetLogLevels(ctx, levels)
	return nil, err
}

func (s *session) getEpoch(ctx context.Context, c *call) ([]any, error) {
	number := c.args[0].(uint32)
	path := epochPath(int(number))
	if _, ok := s.state.get(ctx).objects[path]; !ok {
		return nil, noSuchEpochError(int(number))
	}
	return []any{path}, nil
}

func (s *session) listEpochs(ctx context.Context, _ *call) ([]any, error) {
	return []any{append([]listedEpoch{}, s.state.get(ctx).epochs...)}, nil
}

func (s *session) dumpConfig(ctx context.Context, _ *call) ([]any, error) {
	dump, err := s.options.Backend.DumpConfig(ctx)
	return []any{text(dump)}, err
}

func (s *session) abort(ctx context.Context, c *call) ([]any, error) {
	number := int(c.object.values["Number"].(uint32))
	if c.object.values["State"] == "exited" {
		return nil, refusedError(fmt.Sprintf("epoch %d has exited already", number))
	}
	return nil, s.options.Backend.AbortEpoch(ctx, number)
}
