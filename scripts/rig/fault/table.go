package fault

// All returns all faults in the order of their runs.
func All() []Fault {
	return []Fault{
		// Faults of epochs that cannot start.
		{Name: "unparsable override", Description: "bootstrap_override is no JSON",
			Inject: unparsableOverride},
		{Name: "unparsable configuration", Description: "Envoy exits as it reads its file",
			NoValidation: true, Inject: unparsableForEnvoy},
		{Name: "refused by validation",
			Description: "envoy --mode validate finds a route to a cluster that is not there",
			Inject:      unknownClusterValidated},
		{Name: "unknown cluster",
			Description: "the same without validation: the old epoch's admin closes", NoValidation: true,
			Inject: unknownCluster},
		{Name: "port in use", Description: "an error that validation cannot detect",
			Inject: portInUse},
		{Name: "killed while initialising", Description: "SIGKILL to an epoch that is not live yet",
			Inject: killedWhileInitialising},
		{Name: "never live", Description: "an epoch that does not become live within live_timeout",
			Envoy: "live_timeout = \"4s\"\n", Inject: neverLive},
		{Name: "flag left set",
			Description: "the flag of a failed start is still set in the shared memory",
			Inject:      flagLeftSet},
		{Name: "shared memory gone",
			Description: "hot restart is impossible: the new epoch starts side by side",
			Inject:      sharedMemoryGone},
		// Faults of the new epoch during a reload.
		{Name: "new killed",
			Description: "SIGKILL 1 s after LIVE: the old one has closed its listeners", AllowedHarm: HarmOutage,
			Inject: newKilled},
		{Name: "new terminated", Description: "SIGTERM to the newest 1 s after LIVE ends both",
			AllowedHarm: HarmOutage, Inject: newTerminated},
		// Faults of the old epoch (the parent) during a reload.
		{Name: "parent killed", Description: "SIGKILL 1 s after LIVE", AllowedHarm: HarmConnectionsCut,
			Inject: parentKilled},
		{Name: "parent terminated", Description: "SIGTERM 1 s after LIVE", AllowedHarm: HarmConnectionsCut,
			Inject: parentTerminated},
		{Name: "parent killed at start", Description: "SIGKILL while the next one initialises",
			Envoy: "live_timeout = \"4s\"\n", AllowedHarm: HarmOutage, Inject: parentKilledAtStart},
		{Name: "parent stopped",
			Description: "SIGSTOP in the overlap: its child's admin answers throughout, then it is " +
				"killed", Inject: parentStopped},
		{Name: "parent stopped before",
			Description: "SIGSTOP before the new one starts: it is resumed or replaced",
			Inject:      parentStoppedBefore},
		{Name: "storm",
			Description: "a reload each second: an epoch starts only after the last but one has " +
				"ended",
			Inject: storm},
		{Name: "quick storm", Description: "a reload every 0.2 s, so that many wait at once",
			Inject: quickStorm},
		// Faults of the only epoch.
		{Name: "Envoy killed", Description: "SIGKILL", AllowedHarm: HarmOutage, Inject: envoyKilled},
		{Name: "Envoy terminated", Description: "SIGTERM by somebody else", AllowedHarm: HarmOutage,
			Inject: envoyTerminated},
		// Faults of keeper and agent.
		{Name: "keeper killed", Description: "SIGKILL: Envoy ends with it, and no orphan stays",
			AllowedHarm: HarmOutage, Inject: keeperKilled},
		{Name: "agent killed", Description: "SIGKILL: Envoy continues, the next agent adopts it",
			Inject: agentKilled},
		{Name: "agent killed at start",
			Description: "SIGKILL while an epoch initialises that never becomes live",
			Envoy:       "live_timeout = \"4s\"\n", Inject: agentKilledAtStart},
		{Name: "agent killed, then Envoy", Description: "the next agent learns how Envoy ended",
			AllowedHarm: HarmOutage, Inject: agentThenEnvoyKilled},
		{Name: "agent and keeper killed",
			Description: "both start again despite the shared memory and sockets that remain",
			AllowedHarm: HarmOutage, Inject: agentAndKeeperKilled},
		{Name: "agent killed at random",
			Description: "SIGKILL at random moments, during overlap too; every epoch is adopted",
			Inject:      agentKilledAtRandom},
		{Name: "flood", Description: "Envoy logs at debug level and nobody reads the lines",
			Envoy: "log_level = \"debug\"\n", Inject: flood},
	}
}

// Find returns the fault with a name.
func Find(name string) (Fault, bool) {
	for _, fault := range All() {
		if fault.Name == name {
			return fault, true
		}
	}
	return Fault{}, false
}
