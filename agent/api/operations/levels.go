package operations

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"

	"outrider.org/outrider/agent/api"
	"outrider.org/outrider/agent/config"
	"outrider.org/outrider/agent/envoy"
	"outrider.org/outrider/agent/epoch"
)

// LogLevelOperations performs the operations on log levels.
type LogLevelOperations struct {
	Level *slog.LevelVar // of the agent's log
	Log   *slog.Logger
	Proxy *epoch.Proxy
}

// LogLevels returns the current levels: the agent's, those of each Envoy logger, and as Envoy's
// level the one that most of its loggers have.
func (o LogLevelOperations) LogLevels(ctx context.Context) (api.LogLevels, error) {
	levels := api.LogLevels{Agent: strings.ToLower(o.Level.Level().String())}
	e, ok := o.Proxy.Epoch()
	if !ok {
		return levels, nil
	}
	components, err := envoy.NewAdmin(e.AdminAddress).LogLevels(ctx)
	if err != nil {
		return levels, fmt.Errorf("cannot read the log levels of epoch %d: %w", e.Number, err)
	}
	levels.Components = components
	levels.Envoy = mostCommon(components)
	return levels, nil
}

// mostCommon returns the level that most of Envoy's loggers have.
func mostCommon(components map[string]string) string {
	count, best := map[string]int{}, ""
	for _, level := range components {
		count[level]++
		if best == "" || count[level] > count[best] {
			best = level
		}
	}
	return best
}

// SetLogLevels validates and sets levels; if one is invalid, it sets none. The agent's level lasts
// until a reload changes the configured level, Envoy's until the next epoch.
func (o LogLevelOperations) SetLogLevels(ctx context.Context, levels api.LogLevels) (api.LogLevels,
	error) {
	agentLevels, envoyLevels := config.AgentLogLevels(), config.EnvoyLogLevels()
	if levels.Agent != "" && !slices.Contains(agentLevels, levels.Agent) {
		return api.LogLevels{}, badLevel("agent", levels.Agent, agentLevels)
	}
	if levels.Envoy != "" && !slices.Contains(envoyLevels, levels.Envoy) {
		return api.LogLevels{}, badLevel("envoy", levels.Envoy, envoyLevels)
	}
	var components []string
	for component, level := range levels.Components {
		if !slices.Contains(envoyLevels, level) {
			return api.LogLevels{}, badLevel("envoy:"+component, level, envoyLevels)
		}
		components = append(components, component+":"+level)
	}
	slices.Sort(components)
	if levels.Envoy != "" || len(components) > 0 {
		e, ok := o.Proxy.Epoch()
		if !ok {
			return api.LogLevels{}, api.NewRefusal("no epoch is live whose log level could be set")
		}
		admin := envoy.NewAdmin(e.AdminAddress)
		if err := knownLoggers(ctx, admin, levels.Components); err != nil {
			return api.LogLevels{}, err
		}
		if err := admin.SetLogLevels(ctx, levels.Envoy, strings.Join(components, ",")); err != nil {
			return api.LogLevels{},
				api.NewRefusal(fmt.Sprintf("cannot set the log level of epoch %d: %v", e.Number,
					err))
		}
	}
	if levels.Agent != "" {
		_ = o.Level.UnmarshalText([]byte(levels.Agent)) // validated above
	}
	o.Log.Info("log levels set on request", "agent", levels.Agent, "envoy", levels.Envoy,
		"components", strings.Join(components, ","))
	return o.LogLevels(ctx)
}

// knownLoggers returns an error if Envoy lacks one of the wanted loggers.
func knownLoggers(ctx context.Context, admin *envoy.Admin, wanted map[string]string) error {
	if len(wanted) == 0 {
		return nil
	}
	known, err := admin.LogLevels(ctx)
	if err != nil {
		return api.NewRefusal(fmt.Sprintf("cannot list the loggers of Envoy: %v", err))
	}
	for _, component := range slices.Sorted(maps.Keys(wanted)) {
		if _, ok := known[component]; !ok {
			return &api.Error{Status: 400,
				Message: fmt.Sprintf("Envoy has no logger %q", component),
				Reasons: []string{"it has " + strings.Join(slices.Sorted(maps.Keys(known)), ", ")}}
		}
	}
	return nil
}

func badLevel(scope, level string, allowed []string) error {
	return &api.Error{Status: 400, Message: fmt.Sprintf("%s has no log level %q", scope, level),
		Reasons: []string{"allowed are " + strings.Join(allowed, ", ")}}
}
