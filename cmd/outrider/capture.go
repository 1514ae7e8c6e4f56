package main

import (
	"context"
	"fmt"
	"os/user"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"outrider.org/outrider/agent/api"
)

func (a *app) captureCommand() *cobra.Command {
	command := group("capture", "Show and try the interception of connections ([capture])",
		a.captureShowCommand(), a.captureExplainCommand(), a.captureTryCommand(),
		a.captureConfirmCommand())
	command.Long = "Show and try the interception of connections ([capture]). Rules are in force " +
		"while Envoy accepts connections at ports 15001 and 15006, and end with " +
		"outrider-capture.service.\n\n" +
		"With [capture] fail = \"closed\", outbound connections that would be captured are " +
		"refused while Envoy does not serve; with fail_inbound = \"closed\", which is the " +
		"default with an identity, inbound ones. The state is then \"closed\". Inbound " +
		"connections stay closed while Envoy drains and until a stop has finished. Before the " +
		"agent runs after a boot, and with an invalid configuration, this needs \"systemctl " +
		"enable outrider-capture-early\", see outriderd(8). An agent that has failed leaves it " +
		"in force, and systemctl stop does nothing then: use \"outrider cleanup --stop\".\n\n" +
		"A unit of [capture] units or exclude_units is recognized within 50 ms of its " +
		"start. Until then its connections are those of any other unit.\n\n" +
		"To set up interception over ssh, write trial = \"5m\" into [capture] before the " +
		"first start. Within five minutes of the start, log in again, because established " +
		"sessions are never captured, and run \"outrider capture confirm\". Otherwise the " +
		"rules are withdrawn, and nothing is refused any more. Then remove trial: each boot " +
		"begins a new one, which outrider-capture-early begins before Envoy serves. If sshd " +
		"does not listen on port 22, add its port to exclude_inbound_ports.\n\n" +
		"[capture] mode = \"tproxy\" needs CAP_NET_ADMIN for Envoy: copy " +
		"/usr/share/doc/outrider/tproxy.conf to " +
		"/etc/systemd/system/outrider-envoy.service.d and restart " +
		"outrider-envoy.service.\n\n" +
		"With mode = \"redirect\", a local firewall sees captured inbound connections with " +
		"port 15006 (input hook): rules for other ports do not apply to them. Add ports " +
		"that it blocks to [capture] exclude_inbound_ports. A firewall that drops what no " +
		"rule accepts, such as ufw, must accept that port (ufw allow 15006/tcp; direct " +
		"connections to it are reset). firewalld accepts all redirected connections. Ports " +
		"that docker, podman or firewalld forward elsewhere are not captured."
	return command
}

func (a *app) captureShowCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "show",
		Short: "Show the state, the counters and the rules as nft text",
		Args:  cobra.NoArgs,
		RunE: a.asking(func(ctx context.Context, client *api.Client, _ []string) error {
			shown, err := client.Capture(ctx)
			if err != nil {
				return err
			}
			return a.print(shown, func() {
				a.printCapture(shown)
				if len(shown.Counters) > 0 {
					t := &table{head: []string{"RULE", "PACKETS", "BYTES"}}
					for _, c := range shown.Counters {
						t.add(c.Rule, c.Packets, c.Bytes)
					}
					fmt.Fprintln(a.out)
					a.write(t, "")
				}
				if shown.Rules != "" {
					fmt.Fprint(a.out, "\n", shown.Rules)
				}
			})
		}),
	}
}

func (a *app) printCapture(c api.Capture) {
	line := "capture is " + c.State
	if !c.Until.IsZero() {
		line += " until " + c.Until.Local().Format(time.TimeOnly)
	}
	if c.Reason != "" {
		line += ": " + c.Reason
	}
	fmt.Fprintln(a.out, line)
	switch {
	case c.DNS == nil:
	case c.DNS.Reason != "":
		fmt.Fprintf(a.out, "DNS is %s: %s\n", c.DNS.State, c.DNS.Reason)
	default:
		fmt.Fprintf(a.out, "DNS is %s, for queries to %s\n", c.DNS.State,
			strings.Trim(fmt.Sprint(c.DNS.Resolvers), "[]"))
	}
}

func (a *app) captureExplainCommand() *cobra.Command {
	var name string
	var request api.CaptureExplainRequest
	command := &cobra.Command{
		Use:   "explain ADDRESS:PORT",
		Short: "Say whether a connection is captured, by which rule and key",
		Long: "Explain evaluates the rules of the configuration for a TCP connection (with --udp, a\n" +
			"UDP packet, such as a DNS query) that a program on this host sends, or, with\n" +
			"--inbound, that another host sends. What this host routes over lo is not captured,\n" +
			"whatever its address.",
		Example: "  outrider capture explain 192.0.2.1:443 --user www-data\n" +
			"  outrider capture explain 192.0.2.53:53 --udp --unit web.service",
		Args: cobra.ExactArgs(1),
		RunE: a.asking(func(ctx context.Context, client *api.Client, arguments []string) error {
			request.To = arguments[0]
			if name != "" {
				uid, err := uidOf(name)
				if err != nil {
					return err
				}
				request.UID = uid
			}
			found, err := client.ExplainCapture(ctx, request)
			if err != nil {
				return err
			}
			return a.print(found, func() {
				meaning := map[string]string{
					"direct": "not captured", "outbound": "captured: goes to Envoy's port 15001",
					"inbound": "captured: goes to Envoy's port 15006", "refused": "refused",
					"dns": "captured: goes to the DNS proxy at port 15053",
				}[found.Verdict]
				fmt.Fprintf(a.out, "%s (%s)\n", meaning, found.ConfigKey)
				if found.Rule != "" {
					fmt.Fprintf(a.out, "chain %s: %s\n", found.Chain, found.Rule)
				}
				if found.State != "on" && found.State != "trial" &&
					!strings.HasPrefix(found.ConfigKey, "capture.fail") {
					what := "capture"
					if found.Verdict == "dns" {
						what = "capture of DNS"
					}
					fmt.Fprintf(a.out, "The rules are not in force now: %s is %s.\n", what,
						found.State)
				}
			})
		}),
	}
	command.Flags().StringVar(&name, "user", "", "the `user` of the program (default root)")
	command.Flags().StringVar(&request.Unit, "unit", "", "the systemd `unit` of the program")
	command.Flags().BoolVar(&request.UDP, "udp", false, "explain UDP instead of TCP")
	command.Flags().BoolVar(&request.Inbound, "inbound", false,
		"the connection comes from another host")
	return command
}

// uidOf returns the UID of a user, given by name or UID.
func uidOf(name string) (uint32, error) {
	text := name
	if found, err := user.Lookup(name); err == nil {
		text = found.Uid
	}
	id, err := strconv.ParseUint(text, 10, 32)
	if err != nil {
		return 0, usagef("--user: there is no user %q", name)
	}
	return uint32(id), nil
}

func (a *app) captureTryCommand() *cobra.Command {
	var trial api.CaptureTrialRequest
	command := &cobra.Command{
		Use:   "try",
		Short: "Capture for a time; withdraw the rules unless confirmed",
		Long: "Try captures connections until the time has passed. Unless \"outrider capture\n" +
			"confirm\" was called, the rules are then withdrawn, also if the agent is not\n" +
			"running: nobody locks themselves out.",
		Args: cobra.NoArgs,
		RunE: a.asking(func(ctx context.Context, client *api.Client, _ []string) error {
			if trial.Duration <= 0 {
				return usagef("--for: the time must be positive")
			}
			shown, err := client.StartCaptureTrial(ctx, trial)
			if err != nil {
				return err
			}
			return a.print(shown, func() { a.printCapture(shown) })
		}),
	}
	command.Flags().DurationVar(&trial.Duration, "for", time.Minute, "the `time` of the trial")
	return command
}

func (a *app) captureConfirmCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "confirm",
		Short: "End a trial: the rules stay in force",
		Args:  cobra.NoArgs,
		RunE: a.asking(func(ctx context.Context, client *api.Client, _ []string) error {
			shown, err := client.ConfirmCaptureTrial(ctx)
			if err != nil {
				return err
			}
			return a.print(shown, func() { a.printCapture(shown) })
		}),
	}
}
