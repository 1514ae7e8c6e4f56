package capture

import "testing"

// outrider-capture accepts only settings that the configuration allows, whatever the agent sends.
func TestSettings_ValidateAllowsNoMoreThanTheConfiguration(t *testing.T) {
	for name, test := range map[string]struct {
		settings Settings
		valid    bool
	}{
		"an instance":      {Settings{Instance: "web_1-a"}, true},
		"a dot":            {Settings{Instance: "a.b"}, false},
		"the DNS port":     {Settings{DNSPort: 15053}, true},
		"another DNS port": {Settings{DNSPort: 4444}, false},
	} {
		if err := test.settings.Validate(); (err == nil) != test.valid {
			t.Errorf("%s: %v", name, err)
		}
	}
}
